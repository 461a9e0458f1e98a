"""hotloop report: show a recorded run again, also while it runs or after it was killed."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


ORDER, SUMMARY = 3, "show the report of a recorded run again"


def add_parser(subparsers: Any) -> None:
    from hotloop.cli.show import add_output_options

    parser = subparsers.add_parser(
        "report",
        help=SUMMARY,
        description="Show the report of a recorded run: also of one that still trains, or that was killed.",
    )
    parser.add_argument(
        "run", nargs="?", default="last", help="a run folder, its name under .hotloop/, or 'last' (training)"
    )
    add_output_options(parser)
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even when a serious fault was found")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.show import check_outputs, has_serious_fault, note_newer_run, show_report
    from hotloop.pipeline.runs import read_report, recorded_probe

    check_outputs(arguments.json, arguments.html)
    note_newer_run(arguments.run)
    report = read_report(arguments.run, probe=recorded_probe)
    show_report(report, arguments, sys.stdout)
    return 1 if has_serious_fault(report) and not arguments.exit_zero else 0
