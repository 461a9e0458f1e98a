"""hotloop tune: try the fixes of a training's findings on the unmodified command, and keep what is proven."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from typing import Any

    from hotloop.pipeline.tuning import Progress, Request

GOALS = ("speed", "memory", "pareto", "cost")


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "tune",
        help=summary,
        description="Observe a training, try the fixes of its findings in fresh processes, and write the proven ones "
        "to fast.toml. The command and its files stay as they are.",
        usage="hotloop tune [options] -- COMMAND...",
    )
    parser.add_argument(
        "--budget", metavar="TIME", default="15m", help="time for everything: 90s, 15m, 2h (default 15m)"
    )
    parser.add_argument("--goal", choices=GOALS, default="speed", help="what to make better (default: speed)")
    parser.add_argument("-o", "--out", metavar="DIR", help="folder for what is found (default: .hotloop/tune-<time>)")
    parser.add_argument("--no-probe", action="store_true", help="measure no opportunities before the trials")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress and no report")
    parser.add_argument("command", nargs="...", metavar="COMMAND", help="the training command")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from hotloop.attach import child
    from hotloop.cli.probing import probe_training
    from hotloop.pipeline import no_probe
    from hotloop.pipeline.tuning import Progress, Request, tune_command

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command to tune; write: hotloop tune -- python train.py")
    budget_s = parse_time_s(arguments.budget)
    resolved = child.resolve_command(command, os.environ.get("PATH"))
    if child.ignores_pythonpath(resolved):
        raise UsageError("Python was started with -I, -E or -S: hotloop cannot change a training that it cannot enter")
    folder = make_folder(arguments.out)
    request = Request(
        command=tuple(resolved),
        variables=dict(os.environ),
        cwd=Path.cwd(),
        folder=folder,
        store=(folder.parent if arguments.out is None else folder) / "tune.sqlite",
        budget_s=budget_s,
        goal=arguments.goal,
        make_probe=(lambda run_folder: no_probe) if arguments.no_probe else probe_training,
    )
    progress = Progress()
    try:
        tune_command(request, progress, _make_teller(arguments.quiet))
    except KeyboardInterrupt:
        if progress.report is None:
            print("hotloop: interrupted before the baseline was observed: there is nothing to write", file=sys.stderr)
            return 0
        print("hotloop: interrupted: what was found so far is written", file=sys.stderr)
    _write(request, progress, folder, arguments.quiet)
    return 0


def parse_time_s(text: str) -> float:
    """Seconds of ``90s``, ``15m``, ``1.5h`` or plain seconds. Raises UsageError.

    >>> parse_time_s("15m"), parse_time_s("90")
    (900.0, 90.0)
    """
    unit_s = {"s": 1, "m": 60, "h": 3600}.get(text[-1:].lower())
    number = text[:-1] if unit_s else text
    try:
        found_s = float(number) * (unit_s or 1)
    except ValueError:
        found_s = 0.0
    if not 0 < found_s < 1e7:
        raise UsageError(f"--budget is {text!r}: write a time such as 90s, 15m or 2h")
    return found_s


def make_folder(out: str | None) -> Path:
    """A folder for the outcome. One that exists is taken only when a tuning made it. Raises UsageError."""
    import time
    from pathlib import Path

    if out is None:
        from hotloop.attach.run_folder import ignore_in_git

        root = Path.cwd() / ".hotloop"
        base = time.strftime("tune-%Y%m%d-%H%M%S")
        for attempt in range(1000):
            folder = root / (base if attempt == 0 else f"{base}-{attempt}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise UsageError(f"cannot write to {root}: {error.strerror}; name a folder with -o DIR") from error
            ignore_in_git(root)
            return folder
        raise UsageError(f"{root} is full of tunings of this second; name a folder with -o DIR")
    folder = Path(out).resolve()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "tune.sqlite").exists())):
        raise UsageError(f"{out} exists and holds something else: name a new folder with -o DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {out}: {error.strerror}; name another folder with -o DIR") from error
    return folder


def _make_teller(quiet: bool) -> Any:
    import time

    began_s = time.monotonic()

    def tell(text: str) -> None:
        if not quiet:
            print(f"hotloop: {time.monotonic() - began_s:4.0f} s: {text}", file=sys.stderr, flush=True)

    return tell


def _write(request: Request, progress: Progress, folder: Path, quiet: bool) -> None:
    from hotloop.cli.show import show_report, write_text
    from hotloop.pipeline.tuning import finish_report, keep_history, make_patch, strategy_text

    strategy_file = folder / "fast.toml"
    shown = os.path.relpath(strategy_file)
    report, strategy = finish_report(progress, request.goal, shown)
    report = keep_history(report, request.store.parent)
    write_text(str(strategy_file), strategy_text(strategy))
    patch = make_patch(progress, request)
    write_text(str(folder / "patch.diff"), patch.diff)
    if report.tune is not None and patch.left_out:
        left = tuple(f"not in patch.diff: {one.technique}: {one.why}" for one in patch.left_out)
        report = replace(report, tune=replace(report.tune, warnings=(*report.tune.warnings, *left)))
    if not quiet:
        names = "fast.toml, patch.diff, report.html and report.json"
        print(f"hotloop: {names} are in {os.path.relpath(folder)}", file=sys.stderr)
    show_report(
        report,
        json_path=str(folder / "report.json"),
        html_path=str(folder / "report.html"),
        quiet=quiet,
        stream=sys.stderr,
    )
