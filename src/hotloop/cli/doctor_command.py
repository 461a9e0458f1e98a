"""hotloop doctor: is this machine set up well for training, and which points of the usual checklist are met?"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from hotloop.core.doctor import MachineCheck
    from hotloop.core.report import Report

MOST_WIDTH = 110
LEAST_WIDTH = 40


ORDER, SUMMARY = 9, "check whether this machine is set up well for training"


def add_parser(subparsers: Any) -> None:
    from hotloop.cli.show import add_output_options

    parser = subparsers.add_parser(
        "doctor",
        help=SUMMARY,
        description="Check this machine, the training's Python and the environment for anything that slows or breaks a "
        "training. Exits with 1 if something is harmful.",
    )
    parser.add_argument(
        "--checklist",
        metavar="RUN",
        nargs="?",
        const="",
        help="also print the tuning checklist; give a recorded run (folder, name or 'last') to fill it in",
    )
    parser.add_argument("--data", metavar="FOLDER", help="measure for one second how fast this folder can be read")
    parser.add_argument("--python", metavar="PATH", help="the training's Python (default: python on PATH)")
    add_output_options(parser, "checks", kind="doctor", html=None, quiet="nothing")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even if something is harmful")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from hotloop import __version__
    from hotloop.bench.checklist import fill_checklist
    from hotloop.bench.doctor import has_harm, run_checks
    from hotloop.bench.host import examine_host
    from hotloop.bench.storage import read_folder
    from hotloop.cli.show import check_outputs, choose_width, show_report
    from hotloop.core.doctor import DoctorReport
    from hotloop.core.errors import UsageError

    check_outputs(arguments.json)
    report, recorded_python = _read_run(arguments.checklist) if arguments.checklist else (None, None)
    interpreter = _find_python(arguments.python, recorded_python)
    reading = None
    if arguments.data is not None:
        folder = Path(arguments.data)
        if not folder.is_dir():
            raise UsageError(f"--data {arguments.data}: no such folder; give the folder of the training data")
        reading = read_folder(str(folder.resolve()))
    checks = run_checks(examine_host(interpreter, os.environ, reading=reading))
    items = None if arguments.checklist is None else fill_checklist(checks, report)
    answer = DoctorReport(
        tool_version=__version__,
        python=interpreter,
        checks=checks,
        checklist=items,
        run=None if report is None else report.run_folder,
        next=_next_command(checks, arguments),
    )
    width = max(LEAST_WIDTH, min(choose_width(sys.stdout), MOST_WIDTH))
    show_report(answer, arguments, sys.stdout, width=width)
    return 1 if has_harm(checks) and not arguments.exit_zero else 0


def _read_run(run: str) -> tuple[Report, str | None]:
    """The report of a recorded run and the interpreter that it trained with."""
    from pathlib import Path

    from hotloop.pipeline.runs import recorded_probe, report_run
    from hotloop.trace.recording import find_run, read_run

    folder = find_run(run, Path.cwd())
    recording = read_run(folder)
    executable = recording.processes[0].process.get("executable") if recording.processes else None
    return report_run(recording, folder=folder, probe=recorded_probe), executable if isinstance(
        executable, str
    ) else None


def _find_python(asked: str | None, recorded: str | None) -> str | None:
    """The training's python: the one that was asked for, the recorded one, or the one on PATH; None without any.

    Raises UsageError when the one that was asked for cannot be run.
    """
    import shutil

    from hotloop.core.errors import UsageError

    if asked is not None:
        found = shutil.which(asked)
        if found is None:
            raise UsageError(f"--python {asked}: not found, or not executable; give the path of the training's Python")
        return found
    if recorded is not None and os.access(recorded, os.X_OK):
        return recorded
    return shutil.which("python") or shutil.which("python3")


def _next_command(checks: Sequence[MachineCheck], arguments: argparse.Namespace) -> str:
    """The next command worth typing."""
    if any(c.id == "torch" and c.status == "unknown" for c in checks):
        return "hotloop doctor --python PATH   (the training's Python)"
    if arguments.checklist:
        return f"hotloop report {arguments.checklist}"
    return "hotloop run -- python train.py"
