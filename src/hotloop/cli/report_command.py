"""hotloop report: show a recorded run again, also while it runs or after it was killed; or what a JSON file holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, has_serious_fault, note_newer_run, show_report
from hotloop.core.errors import RecordingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 64 * 2**20
"""A larger file is not a report: reading it would take memory that the machine may need."""


ORDER, SUMMARY = 3, "show the report of a recorded run, or render a JSON report"


ABOUT = {
    "description": (
        "Show the report of a recorded run, even if the run is still training or was killed. Or render the JSON "
        "report of another command (from --json, or tune's report.json), even from an older hotloop."
    )
}
OPTIONS = (
    option(
        "run",
        nargs="?",
        default="last",
        help="a run folder, its name under .hotloop/, 'last' (the last training run), the URL of `hotloop run "
        "--record`, or a JSON report",
    ),
    *output_options(kind=None),
    option("--exit-zero", action="store_true", help="exit with 0 even if a serious problem was found"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.core.report import Report
    from hotloop.pipeline.runs import read_report, recorded_probe

    check_outputs(arguments.json, arguments.html)
    path = Path(arguments.run)
    report: object
    if path.suffix == ".json" and not path.is_dir():
        report = read_report_file(path)
        try:
            show_report(report, arguments, sys.stdout)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise RecordingError(f"{path} cannot be rendered: its values contradict each other ({reason})") from error
    else:
        note_newer_run(arguments.run)
        report = read_report(arguments.run, probe=recorded_probe)
        show_report(report, arguments, sys.stdout)
    serious = isinstance(report, Report) and has_serious_fault(report)
    return 1 if serious and not arguments.exit_zero else 0


def read_content(content: Any) -> object:
    """The report of any kind that this JSON holds; what its fixes ask for is said as today.

    Raises RecordingError where it is not a report.
    """
    from dataclasses import replace

    from hotloop.change.apply import ACTS
    from hotloop.core.acts import fill_fixes
    from hotloop.core.report import Report
    from hotloop.show.report import read_report_json

    report = read_report_json(content)
    return replace(report, findings=fill_fixes(report.findings, ACTS)) if isinstance(report, Report) else report


def read_report_file(path: Path) -> object:
    """The report in a JSON file. The file may come from anybody: it is bounded and only read."""
    import json

    from hotloop.core.input_file import read_bounded

    data = read_bounded(path, MOST_BYTES, "report of hotloop", RecordingError)
    try:
        return read_content(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{path} is not valid JSON: {str(error)[:200]}") from None
    except RecordingError as error:
        raise RecordingError(f"{path} is not a report that can be rendered: {error}") from None
