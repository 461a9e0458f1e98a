"""hotloop diff: why a step takes longer or shorter than it did."""

from __future__ import annotations

import argparse
import sys

from hotloop.cli.options import WORKERS, option, output_options
from hotloop.cli.show import (
    check_counts,
    check_outputs,
    choose_workers,
    note_newer_run,
    show_report,
)

ORDER, SUMMARY = 5, "explain why a step takes more or less time"


SIDE = "a trace file, a folder of ranks, a run folder, a name under .hotloop/, or 'last'"
ABOUT = {
    "description": (
        "Compare the steps of two recorded runs or of two profiler traces (a file, or a folder with one file per "
        "rank). The terms add up to the change in step time."
    )
}
OPTIONS = (
    option("before", metavar="A", help=SIDE),
    option("after", metavar="B", help="the run or trace to compare with A"),
    *output_options("comparison", kind="diff", html=None),
    option("--top", type=int, default=10, metavar="N", help="number of kernels and operators to show (default: 10)"),
    WORKERS,
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.pipeline.comparisons import compare

    check_outputs(arguments.json)
    check_counts(arguments, "top", "workers")
    note_newer_run(arguments.before, arguments.after)
    comparison = compare(
        arguments.before,
        arguments.after,
        workers=choose_workers(arguments),
    )
    show_report(comparison, arguments, sys.stdout)
    return 0
