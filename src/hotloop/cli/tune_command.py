"""hotloop tune: try the fixes of a training's findings on the unmodified command, and keep what is proven."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hotloop.cli.options import format_option, option
from hotloop.cli.show import emit, make_probe, show_report, take_command, write_text
from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hotloop.change.tune.study import Progress, Request

ORDER, SUMMARY = 2, "try fixes on the unmodified command, and prove them"
GOALS = ("speed", "memory")
NOT_AGAIN = ("--help", "--budget", "--out", "--apply", "--format", "--quiet")
"""Options that do not change what is tuned: all others belong in the command to run next."""


ABOUT = {
    "description": (
        "Observe a training run, try the fixes for its findings in fresh processes, and write the proven fixes to "
        "fast.toml. The command and its files are not changed."
    ),
    "usage": "hotloop tune [options] -- COMMAND...\n       hotloop tune --apply DIR",
}
OPTIONS = (
    option("--budget", metavar="TIME", default="15m", help="total time, such as 90s, 15m or 2h (default: 15m)"),
    option("--goal", choices=GOALS, default="speed", help="what to optimize (default: speed)"),
    option("-o", "--out", metavar="DIR", help="output folder (default: .hotloop/tune-<time>)"),
    option(
        "--apply",
        metavar="DIR",
        nargs="?",
        const="",
        help="apply the patch of a finished tuning run (its folder, its name under .hotloop/, or last) to the source; "
        "without DIR: the patch of this tuning run. Applies only a patch that reproduced the gain",
    ),
    option("--no-probe", action="store_true", help="do not measure opportunities before the trials"),
    format_option(),
    option("-q", "--quiet", action="store_true", help="print no progress and no report"),
    option("command", nargs="...", metavar="COMMAND", help="the training command"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.agent.attach import child
    from hotloop.change.apply import TECHNIQUES
    from hotloop.change.tune.study import Progress, Request
    from hotloop.pipeline.runs import no_probe
    from hotloop.pipeline.tuning import tune_command

    if arguments.apply:
        if arguments.command not in ([], ["--"]):
            raise UsageError(
                "--apply DIR takes no command; to tune and then apply, run: hotloop tune --apply -- COMMAND"
            )
        apply_kept(find_tuning(arguments.apply), arguments.quiet)
        return 0
    command = take_command(arguments, "tune", "tune -- python train.py")
    budget_s = parse_time_s(arguments.budget)
    resolved = child.resolve_attachable(command, os.environ.get("PATH"))
    folder = make_folder(arguments.out)
    request = Request(
        command=tuple(resolved),
        variables=dict(os.environ),
        cwd=Path.cwd(),
        folder=folder,
        budget_s=budget_s,
        goal=arguments.goal,
        techniques=dict(TECHNIQUES.items()),
        options=_asked_again(arguments),
        typed=tuple(command),
    )
    progress = Progress()
    probe = no_probe if arguments.no_probe else make_probe()
    try:
        tune_command(request, progress, _make_teller(arguments.quiet, budget_s), probe=probe)
    except KeyboardInterrupt:
        if progress.report is None:
            emit("interrupted before the baseline was measured: nothing to write")
            return 0
        emit("interrupted: writing the results so far")
    _write(request, progress, arguments)
    return 0


def find_tuning(name: str) -> Path:
    """The folder of a finished tuning: a path, its name under .hotloop/, or ``last``. Raises UsageError."""

    root = Path.cwd() / ".hotloop"
    if name == "last":
        folders = sorted(root.glob("tune-*"), key=lambda one: one.stat().st_mtime_ns)
        if not folders:
            raise UsageError(f"there is no tuning run in {root}; run: hotloop tune -- python train.py")
        return folders[-1]
    for folder in (Path(name), root / name):
        if folder.is_dir():
            return folder.resolve()
    raise UsageError(f"--apply {name!r}: no such folder; give the folder of a finished tuning run, or 'last'")


def apply_kept(folder: Path, quiet: bool) -> None:
    """Write the patch of a finished tuning into the source below the current folder. Raises UsageError."""

    from hotloop.change.tune.patch import DIFF, apply_patch, load_patch

    root = Path.cwd()
    kept = load_patch(folder, root)
    if kept.is_there:
        _make_teller(quiet)("the source already contains the patch; nothing was written")
        return
    apply_patch(kept.patch)
    emit = _make_teller(quiet)
    for change in kept.patch.files:
        emit(f"changed {os.path.relpath(change.path)}: {', '.join(change.techniques)}")
    emit(f"to revert: patch -R -p1 --binary -i {os.path.relpath(folder / DIFF)}")


def _apply_new(progress: Progress, folder: Path, quiet: bool) -> None:
    """The patch of the tuning that was just run; an objection to it is reported, and is not an error of the tuning."""

    if progress.check is None:
        emit("nothing was applied: no change to the source was proven")
        return
    try:
        apply_kept(folder, quiet)
    except UsageError as error:
        emit(f"nothing was applied: {error}")


def _asked_again(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The options that change what is tuned, where they are not as they are without being given."""
    words: list[str] = []
    for action in arguments.parser._actions:
        name, value = action.option_strings[-1:], getattr(arguments, action.dest, None)
        if name and name[0] not in NOT_AGAIN and value != action.default:
            words += name if value is True else [*name, str(value)]
    return tuple(words)


def parse_time_s(text: str, option: str = "--budget") -> float:
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
        raise UsageError(f"{option} is {text!r}; give a time such as 90s, 15m or 2h")
    return found_s


def make_folder(out: str | None, kind: str = "tune") -> Path:
    """A folder for the outcome. An existing folder is used only when a tuning made it. Raises UsageError."""

    if out is None:
        from hotloop.agent.attach.run_folder import ignore_in_git

        root = Path.cwd() / ".hotloop"
        base = time.strftime(f"{kind}-%Y%m%d-%H%M%S")
        for attempt in range(1000):
            folder = root / (base if attempt == 0 else f"{base}-{attempt}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise UsageError(f"cannot write to {root}: {error.strerror}; choose a folder with -o DIR") from error
            ignore_in_git(root)
            return folder
        raise UsageError(f"{root} already contains all folder names for this second; remove old folders")
    folder = Path(out).resolve()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "trials").is_dir())):
        raise UsageError(f"{out} exists and is not a tuning folder: choose another folder with -o DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {out}: {error.strerror}; choose another folder with -o DIR") from error
    return folder


def _make_teller(quiet: bool, budget_s: float | None = None) -> Callable[[str], None]:
    begun_s = time.monotonic()
    of = "" if budget_s is None else f" of {budget_s:.0f}"

    def emit_with_time(text: str) -> None:
        if not quiet:
            emit(f"{time.monotonic() - begun_s:4.0f}{of} s: {text}")

    return emit_with_time


def _write(request: Request, progress: Progress, arguments: argparse.Namespace) -> None:
    from hotloop.change.tune.attempt import settle_patch
    from hotloop.change.tune.outcome import (
        finish_report,
        keep_history,
        list_overrides,
        reveal_next,
        strategy_text,
    )
    from hotloop.change.tune.patch import ABOUT, DIFF, about_text, diff_text

    folder = request.folder
    strategy_file = folder / "fast.toml"
    patch = settle_patch(progress, request)
    report, strategy = finish_report(request, progress, os.path.relpath(strategy_file))
    report = keep_history(report, folder.parent if arguments.out is None else folder)
    write_text(str(strategy_file), strategy_text(strategy, list_overrides(progress)))
    write_text(str(folder / DIFF), diff_text(patch, progress.check))
    (folder / ABOUT).unlink(missing_ok=True)  # of an earlier tuning into the same folder
    if progress.check is not None:
        write_text(str(folder / ABOUT), about_text(patch, request.cwd, progress.check))
    if not arguments.quiet:
        emit(f"fast.toml, patch.diff, report.html and report.json are in {os.path.relpath(folder)}")
    if arguments.apply is not None:
        _apply_new(progress, folder, arguments.quiet)
    arguments.json, arguments.html = str(folder / "report.json"), str(folder / "report.html")
    show_report(report, arguments, sys.stderr)
    runnable = reveal_next(request, report)
    if runnable and not arguments.quiet:
        print(f"To run it with the values that the report hides: {runnable}", file=sys.stderr)
