"""hotloop attach: what does a training that already runs do, or where is it stuck?"""

from __future__ import annotations

import sys

from hotloop.cli.options import option, output_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

ORDER, SUMMARY = 2, "say where a training that already runs stands, or hangs"
EXIT_CODES = {"hung": 1, "slow": 1, "cannot tell": 3}


ABOUT = {
    "description": (
        "Look for a few seconds at a training that already runs, started with hotloop or not, and say "
        "whether it is hung, slow or healthy: which rank differs, on which line, what it waits for, and since when. "
        "Nothing is stopped or changed. Exits with 0 where it is healthy, starting, saving or compiling, 1 where it is "
        "hung or slow, 3 where it cannot tell, 2 after a wrong use."
    )
}
OPTIONS = (
    option(
        "target",
        nargs="?",
        metavar="PID|RUN",
        help="id of a rank or of its launcher, or a run folder or its name (default: every training on this machine)",
    ),
    *output_options("snapshot", kind="attach", html=None),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.show import check_outputs, show_report
    from hotloop.pipeline.attach import attach

    check_outputs(arguments.json)
    reports = attach(arguments.target)
    for report in reports[1:] if arguments.json is None else ():
        show_report(report, arguments, sys.stdout)
    show_report(reports[0], arguments, sys.stdout)
    return EXIT_CODES.get(reports[0].verdict, 0)
