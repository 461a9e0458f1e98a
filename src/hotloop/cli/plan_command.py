"""hotloop plan: memory, time and cost of a training before the hardware is rented."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

ORDER, SUMMARY = 8, "does it fit, before the hardware is rented: memory of a planned training"
ZERO_OPTIONS = ("params", "ranks", "precision", "optimizer")


def add_parser(subparsers: Any) -> None:
    from hotloop.cli.show import add_output_options

    parser = subparsers.add_parser(
        "plan",
        help=SUMMARY,
        description="Plan a training from a TOML file with [model], [run] and [hardware]: memory of the device that "
        "needs most, what holds it, and what would save how much. Needs no GPU and no torch. docs/plan.md describes "
        "the file and states the error on published runs.",
        usage="hotloop plan FILE.toml [options]\n       hotloop plan zero --params N --ranks N [options]",
    )
    parser.add_argument("file", metavar="FILE", help="a workload file, or the word zero for ZeRO's table")
    parser.add_argument(
        "--why-oom", action="store_true", help="rank what would save memory, also where the run fits easily"
    )
    parser.add_argument("--params", type=float, metavar="N", help="zero: number of parameters, such as 175e9")
    parser.add_argument("--ranks", type=int, metavar="N", help="zero: number of data-parallel ranks")
    parser.add_argument(
        "--precision",
        metavar="NAME",
        help="zero: mixed (2 + 2 + 12 bytes a parameter; default) or fp32 (4 + 4 + 8)",
    )
    parser.add_argument("--optimizer", metavar="NAME", help="zero: adamw (default), sgd, adafactor or adamw-8bit")
    add_output_options(parser, "plan", kind="plan", html="with its memory as a bar, as one HTML file")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.show import check_outputs, show_report
    from hotloop.core.errors import UsageError

    check_outputs(arguments.json, arguments.html)
    report: object
    if arguments.file == "zero":
        from hotloop import __version__
        from hotloop.plan.planner import build_zero_report

        if arguments.params is None or arguments.ranks is None:
            raise UsageError("plan zero needs --params and --ranks, such as --params 175e9 --ranks 64")
        precision, optimizer = arguments.precision or "mixed", arguments.optimizer or "adamw"
        report = build_zero_report(arguments.params, arguments.ranks, precision, optimizer, __version__)
    else:
        from hotloop.pipeline.plans import make_plan
        from hotloop.plan.workload_file import read_workload_file

        given = [name for name in ZERO_OPTIONS if getattr(arguments, name) is not None]
        if given:
            raise UsageError(f"--{given[0]} belongs to `hotloop plan zero`; a workload file states it itself")
        report = make_plan(read_workload_file(arguments.file), wants_remedies=arguments.why_oom)
    show_report(report, arguments, sys.stdout)
    return 0
