"""hotloop report: show a recorded run again, also while it runs or after it was killed."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "report",
        help=summary,
        description="Show the report of a recorded run: also of one that still trains, or that was killed.",
    )
    from hotloop.cli.show import add_output_options

    parser.add_argument(
        "run", nargs="?", default="last", help="a run folder, its name under .hotloop/, or 'last' (training)"
    )
    add_output_options(parser, json_help="write the report as JSON to FILE, or - for standard output")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even when a serious fault was found")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from hotloop.cli.probing import recorded_probe
    from hotloop.cli.show import check_outputs, has_serious_fault, note_newer_run, show_report
    from hotloop.pipeline import report_run
    from hotloop.trace.recording import find_run, read_run

    check_outputs(arguments.json, arguments.html)
    folder = find_run(arguments.run, Path.cwd())
    note_newer_run(arguments.run)
    report = report_run(read_run(folder), folder=folder, probe=recorded_probe)
    quiet = arguments.quiet or arguments.json == "-"
    show_report(report, json_path=arguments.json, html_path=arguments.html, quiet=quiet, stream=sys.stdout)
    return 1 if has_serious_fault(report) and not arguments.exit_zero else 0
