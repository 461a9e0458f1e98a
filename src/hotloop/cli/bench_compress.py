"""hotloop bench compress: what each gradient compressor costs, sends, loses and wins."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

SIZES = "1,10,100"
RATES = "100mbit,1gbit,10gbit"


def add_compress_parser(kinds: Any) -> argparse.ArgumentParser:
    """The parser, without the options that all benchmarks of a program share."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "compress",
        help="measure gradient compressors: cost, bytes sent, error, speed-up over a link",
        description="Compress and restore gradients by each of hotloop's methods. Without FILE:FUNCTION, random ones.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="FILE:FUNCTION",
        help="Python file and the name of a function without arguments that returns (model, loader[, optimizer[, "
        "loss]]): compress its gradients of one batch",
    )
    parser.add_argument(
        "--sizes", metavar="LIST", default=SIZES, help=f"random elements to try, in units of 2**20 (default: {SIZES})"
    )
    parser.add_argument(
        "--links", metavar="LIST", default=RATES, help=f"rates of links to state times for (default: {RATES})"
    )
    parser.add_argument("--device", metavar="DEVICE", help="device to compress on (default: the model's, or cpu)")
    parser.set_defaults(execute=execute_compress)
    return parser


def execute_compress(arguments: argparse.Namespace) -> int:
    import os
    import sys

    from hotloop import __version__
    from hotloop.bench.figures import parse_rates, tabulate_exchanges
    from hotloop.bench.program import find_python, run_program, split_target
    from hotloop.cli.bench_options import SLACK_S, parse_integers
    from hotloop.cli.show import check_outputs, show_report
    from hotloop.core.benchmarks import BenchmarkResult
    from hotloop.core.errors import UsageError

    check_outputs(arguments.json, arguments.html)
    if not 0 < arguments.budget <= 3600:
        raise UsageError(f"--budget {arguments.budget}: give seconds between 0 and 3600")
    rates = parse_rates(arguments.links)
    request: dict[str, Any] = {
        "what": "compress",
        "budget_s": arguments.budget,
        "sizes": parse_integers("--sizes", arguments.sizes, 1),
        "device": arguments.device,
        "memory_bytes": available_bytes(),
    }
    if arguments.target is not None:
        request["file"], request["function"] = split_target(arguments.target)
    python = find_python(arguments.python, os.environ.get("PATH"))
    answer = run_program("benchmarks", request, python, 4 * arguments.budget + SLACK_S)
    notes = [
        *answer["notes"],
        "error: L2 norm of what one exchange changes, relative to the gradient's; int8, topk and powersgd keep it for "
        "the next step",
        "wire: what one of two ranks sends, at the link's full rate and without latency; speed-up: over float32 on the "
        "same link, if compressing, sending and restoring follow each other and backward hides none of it",
    ]
    result = BenchmarkResult(
        tool_version=__version__,
        benchmark="compress",
        subject=arguments.target or "random gradients",
        tables=(tuple(answer["rows"]), tuple(tabulate_exchanges(answer["rows"], rates))),
        facts={"device": answer["device"]},
        machine=answer["machine"],
        notes=tuple(notes),
    )
    show_report(result, arguments, sys.stdout)
    return 0


def available_bytes() -> int:
    """Half of the memory that is free now: the rest belongs to others."""
    import os

    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
