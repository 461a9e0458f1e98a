"""hotloop attach: what does a training that already runs do, or where is it stuck?"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

ORDER, SUMMARY = 2, "say where a training that already runs stands, or hangs"
EXIT_CODES = {"hung": 1, "slow": 1, "cannot tell": 3}


def add_parser(subparsers: Any) -> None:
    from hotloop.cli.show import add_output_options

    parser = subparsers.add_parser(
        "attach",
        help=SUMMARY,
        description="Look for a few seconds at a training that already runs, started with hotloop or not, and say "
        "whether it is hung, slow or healthy: which rank differs, on which line, what it waits for, and since when. "
        "Nothing is stopped or changed. Exits with 0 where it is healthy, starting, saving or compiling, 1 where it is "
        "hung or slow, 3 where it cannot tell, 2 after a wrong use.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="PID|RUN",
        help="id of a rank or of its launcher, or a run folder or its name (default: every training on this machine)",
    )
    add_output_options(parser, "snapshot", kind="attach", html=None)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.show import check_outputs, show_report
    from hotloop.pipeline.attach import attach

    check_outputs(arguments.json)
    reports = attach(arguments.target)
    for report in reports[1:] if arguments.json is None else ():
        show_report(report, arguments, sys.stdout)
    show_report(reports[0], arguments, sys.stdout)
    return EXIT_CODES.get(reports[0].verdict, 0)
