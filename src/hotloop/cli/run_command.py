"""hotloop run: put it in front of a training command; the command runs unchanged and a report follows."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.core.errors import CommandNotStarted, HotloopError, UsageError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a training command and say what its steps wait for",
        description="Run a training command unchanged, watch it from inside, and report what its steps wait for.",
        usage="hotloop run [options] -- COMMAND...   or   hotloop run [options] train.py [arguments]",
    )
    from hotloop.cli.show import add_output_options

    add_output_options(parser, json_help="write the report as JSON to FILE")
    parser.add_argument(
        "--name", metavar="NAME", help="name of the run folder under .hotloop/ (default: time and command)"
    )
    parser.add_argument("--live", action="store_true", help="print a line with rate, shares and verdict while training")
    parser.add_argument("--no-deep", action="store_true", help="never run torch.profiler, not even for one step")
    parser.add_argument("--no-probe", action="store_true", help="measure no opportunities after the training")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the training command")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.attach import child
    from hotloop.cli.show import check_outputs

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command to run; write: hotloop run -- python train.py")
    if arguments.json == "-":
        raise UsageError("run writes its JSON to a file (standard output belongs to the training): --json report.json")
    check_outputs(arguments.json, arguments.html)
    resolved = child.resolve_command(command, os.environ.get("PATH"))
    folder, notes = _create_run_folder(arguments.name, command)
    if child.ignores_pythonpath(resolved):
        notes.append(
            "Python was started with -I, -E or -S, which ignores PYTHONPATH: only an interpreter whose own "
            "environment has hotloop installed can be observed so"
        )
    manifest = {
        "schema": "hotloop.run/1",
        "hotloop": __version__,
        "command": _redacted(command),
        "started_wall_s": time.time(),
        "notes": notes,
        "pid": os.getpid(),
    }
    _write_json(folder / "run.json", manifest)
    options = {"deep": not arguments.no_deep}
    environment = child.attach_environment(os.environ, folder, options)
    kills_before = child.oom_kills()
    live = _live_line(folder) if arguments.live else None
    try:
        end = child.run_child(resolved, environment, live)
    except CommandNotStarted:
        _remove_run_folder(folder)
        raise
    kills_after = child.oom_kills()
    _write_json(
        folder / "outcome.json",
        {
            "schema": "hotloop.outcome/1",
            "exit_code": end.exit_code,
            "signal": end.signal_number,
            "duration_s": end.duration_s,
            "oom_kills": None if kills_before is None or kills_after is None else kills_after - kills_before,
        },
    )
    try:
        _report(arguments, folder)
    except HotloopError as error:
        print(f"hotloop: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"hotloop: interrupted; the report is still there: hotloop report {folder.name}", file=sys.stderr)
    except Exception as error:
        # The training's own exit code must reach the shell, whatever is wrong with our report.
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})" if place is not None else ""
        print(
            f"hotloop: a bug in hotloop lost the report: {type(error).__name__}: {error}{where}; "
            f"the recording is in {folder}",
            file=sys.stderr,
        )
    return end.shell_code


def _report(arguments: argparse.Namespace, folder: Path) -> None:
    from hotloop.cli.probing import probe_training
    from hotloop.cli.show import show_report
    from hotloop.pipeline import no_probe, report_run
    from hotloop.trace.recording import read_run

    probe = no_probe if arguments.no_probe else probe_training(folder)
    report = report_run(read_run(folder), folder=folder, probe=probe)
    show_report(report, json_path=arguments.json, html_path=arguments.html, quiet=arguments.quiet, stream=sys.stderr)


def _create_run_folder(name: str | None, command: list[str]) -> tuple[Path, list[str]]:
    """A new folder under .hotloop/ here, or under the temporary folder when this one cannot be written."""
    notes: list[str] = []
    if name is not None and not re.fullmatch(r"[\w][\w.-]{0,100}", name):
        raise UsageError(f"--name {name!r}: use letters, digits, '.', '_' and '-' only")
    script = next((Path(w).stem for w in command if w.endswith(".py")), Path(command[0]).name)
    base = name or f"{time.strftime('%Y%m%d-%H%M%S')}-{re.sub(r'[^A-Za-z0-9_-]', '-', script)[:40]}"
    for root in (Path.cwd() / ".hotloop", Path(tempfile.gettempdir()) / f"hotloop-{os.getuid()}"):
        for attempt in range(1000):
            folder = root / (base if attempt == 0 else f"{base}-{attempt}")
            try:
                (folder / "processes").mkdir(parents=True)
            except FileExistsError:
                if name is not None:
                    raise UsageError(f"a run named {name!r} exists in {root}; choose another --name") from None
                continue
            except OSError as error:
                notes.append(f"cannot write to {root} ({error.strerror}): the recording lies in the temporary folder")
                break
            if root.name == ".hotloop" and not (root / ".gitignore").exists():
                _ignore_in_git(root)
            return folder, notes
    raise UsageError("no folder to record into: neither .hotloop here nor the temporary folder can be written")


def _ignore_in_git(root: Path) -> None:
    """Recordings do not belong into the user's repository."""
    try:
        (root / ".gitignore").write_text("*\n")
    except OSError as error:
        print(f"hotloop: cannot write {root / '.gitignore'}: {error.strerror}", file=sys.stderr)


def _remove_run_folder(folder: Path) -> None:
    (folder / "run.json").unlink(missing_ok=True)
    (folder / "processes").rmdir()
    folder.rmdir()


def _redacted(command: list[str]) -> list[str]:
    from hotloop.core.redact import redact_command

    return list(redact_command(command))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Best effort: a full disk or a folder that was deleted must not hide the training's own exit code."""
    try:
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(value))
        partial.replace(path)
    except OSError as error:
        print(f"hotloop: cannot write {path}: {error.strerror}", file=sys.stderr)


def _live_line(folder: Path) -> Any:
    from hotloop.cli.live import LiveLine

    return LiveLine(folder, sys.stderr)
