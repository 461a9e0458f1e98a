"""hotloop doctor: is this machine set up well for training?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hotloop import __version__
from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, choose_width, show_report
from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotloop.core.doctor import MachineCheck

MOST_WIDTH = 110
LEAST_WIDTH = 40


ORDER, SUMMARY = 9, "check whether this machine is set up well for training"


ABOUT = {
    "description": (
        "Check this machine, the Python used for training, and the environment for anything that slows down or breaks "
        "training. Exits with 1 if something is harmful."
    )
}
OPTIONS = (
    option("--data", metavar="FOLDER", help="folder of the training data, to check its file system"),
    option("--python", metavar="PATH", help="the Python used for training (default: python on PATH)"),
    *output_options("checks", kind="doctor", html=None, quiet="nothing"),
    option("--exit-zero", action="store_true", help="exit with 0 even if something is harmful"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.core.doctor import DoctorReport
    from hotloop.measure.bench.doctor import has_harm, run_checks
    from hotloop.measure.bench.host import examine_host

    check_outputs(arguments.json)
    interpreter = _find_python(arguments.python)
    data = None if arguments.data is None else Path(arguments.data).resolve()
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {arguments.data}: no such folder; give the folder of the training data")
    checks = run_checks(examine_host(interpreter, os.environ, data_folder=None if data is None else str(data)))
    answer = DoctorReport(
        tool_version=__version__,
        python=interpreter,
        checks=checks,
        next=_next_command(checks),
    )
    width = max(LEAST_WIDTH, min(choose_width(sys.stdout), MOST_WIDTH))
    show_report(answer, arguments, sys.stdout, width=width)
    return 1 if has_harm(checks) and not arguments.exit_zero else 0


def _find_python(asked: str | None) -> str | None:
    """The training's python: the given one, or the one on PATH; None without any.

    Raises UsageError when the given one cannot be run.
    """
    import shutil

    if asked is not None:
        found = shutil.which(asked)
        if found is None:
            raise UsageError(
                f"--python {asked}: not found, or not executable; give the path of the Python used for training"
            )
        return found
    return shutil.which("python") or shutil.which("python3")


def _next_command(checks: Sequence[MachineCheck]) -> str:
    """The next command worth typing."""
    if any(c.id == "torch" and c.status == "unknown" for c in checks):
        return "hotloop doctor --python PATH   (the Python used for training)"
    return "hotloop run -- python train.py"
