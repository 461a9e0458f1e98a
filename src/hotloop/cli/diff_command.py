"""hotloop diff: why a step takes longer or shorter than it did."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def add_parser(subparsers: Any, summary: str) -> None:
    from hotloop.cli.cache_options import add_cache_options

    parser = subparsers.add_parser(
        "diff",
        help=summary,
        description="Compare the steps of two trainings: two recorded runs, or two traces of a profiler (a file, or a "
        "folder with a file for each rank). The terms sum to the change of the step.",
    )
    side = "a trace file, a folder of ranks, a run folder, a name under .hotloop/, or 'last'"
    parser.add_argument("before", metavar="A", help=side)
    parser.add_argument("after", metavar="B", help="the same, to compare with A")
    parser.add_argument("--json", metavar="FILE", help="write the comparison as JSON to FILE, or - for standard output")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of kernels and operators (default: 10)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no comparison")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that read (default: one for each core)")
    add_cache_options(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.cache_options import choose_cache_folder
    from hotloop.cli.show import check_outputs, note_newer_run, show_report
    from hotloop.core.errors import UsageError
    from hotloop.pipeline.diff import DiffOptions, compare

    check_outputs(arguments.json)
    for name in ("top", "workers"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: give a number of at least 1")
    note_newer_run(arguments.before, arguments.after)
    comparison = compare(
        arguments.before,
        arguments.after,
        options=DiffOptions(
            workers=arguments.workers or _count_cores(),
            cache_folder=choose_cache_folder(arguments),
        ),
    )
    show_report(
        comparison,
        json_path=arguments.json,
        quiet=arguments.quiet or arguments.json == "-",
        stream=sys.stdout,
        top=arguments.top,
    )
    sys.stdout.flush()
    return 0


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
