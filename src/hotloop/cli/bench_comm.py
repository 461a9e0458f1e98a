"""hotloop bench comm: collectives between the ranks, their link, its slow pairs, and the devices' topology."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any

    from hotloop.core.benchmarks import BenchmarkResult, Row


def add_comm_parser(kinds: Any) -> argparse.ArgumentParser:
    """The parser, without the options that all benchmarks of a program share."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "comm",
        help="measure collectives between ranks, find slow pairs, and choose how to send gradients",
        description="Time collectives over message sizes on the live backend (NCCL where each rank has a device, else "
        "gloo). Starts --ranks processes on this host; started by torchrun or srun, it is one rank of their group, and "
        "rank 0 prints.",
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks to start on this host (default: 2)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl where each rank has a device")
    parser.add_argument("--sizes", metavar="LIST", help="message sizes (default: 1K,4K,16K and so on to 64M)")
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="a recorded DDP run: also time the exchange of its gradients, and forecast each way of sending them",
    )
    parser.add_argument("--nccl-log", metavar="FILE", help="a log of NCCL_DEBUG=INFO, to state the transports in use")
    parser.set_defaults(execute=execute_comm)
    return parser


def execute_comm(arguments: argparse.Namespace) -> int:
    import sys

    from hotloop.attach.child import SOURCE
    from hotloop.bench.collective_times import SIZES, loopback, plan_launch
    from hotloop.bench.program import find_python, run_ranks
    from hotloop.bench.topology import read_nccl_log, read_topology
    from hotloop.cli.show import check_outputs, show_report
    from hotloop.core.errors import UsageError
    from hotloop.core.link_fit import COLLECTIVES
    from hotloop.pipeline.launches import read_training

    check_outputs(arguments.json, arguments.html)
    if not 0 < arguments.budget <= 3600:
        raise UsageError(f"--budget {arguments.budget}: give seconds between 0 and 3600")
    launch = plan_launch(os.environ, arguments.ranks)
    log = None if arguments.nccl_log is None else read_nccl_log(arguments.nccl_log)
    training, python = (None, None) if arguments.run is None else read_training(arguments.run)
    buckets = None if training is None else find_buckets(training, arguments.run)
    request: dict[str, Any] = {
        "budget_s": arguments.budget,
        "collectives": COLLECTIVES,
        "sizes": SIZES if arguments.sizes is None else parse_sizes(arguments.sizes),
        "backend": arguments.backend,
        "buckets": buckets,
        "timeout_s": TIMEOUT_S + 4 * arguments.budget,
    }
    variables = launch.variables
    if launch.is_alone:
        request["store"] = "{folder}/store"
        variables = tuple({**one, **loopback(os.environ)} for one in variables)
    program = SOURCE.parent / "hotloop" / "probe" / "link_times.py"
    found = find_python(arguments.python or python, os.environ.get("PATH"))
    answer = run_ranks(request, found, program, TIMEOUT_S + 4 * arguments.budget, variables)
    if launch.rank != 0:
        return 0
    show_report(make_result(answer, read_topology(log), arguments.run, training), arguments, sys.stdout)
    return 0


TIMEOUT_S = 180.0
"""For ranks that other hosts start: importing torch, and finding each other."""


def find_buckets(training: Any, run: str) -> list[int]:
    """Bytes of the recorded gradient buckets. Raises UsageError where the training has none."""
    from hotloop.core.errors import UsageError

    ddp = training.analysis.lead.ddp
    if ddp is None or not ddp.bucket_sizes:
        raise UsageError(f"--run {run}: no gradient buckets of DistributedDataParallel were recorded; leave --run out")
    return list(ddp.bucket_sizes)


def parse_sizes(text: str) -> list[int]:
    """Bytes of ``1K,64K,16M``. Raises UsageError.

    >>> parse_sizes("1K,2M")
    [1024, 2097152]
    """
    from hotloop.core.errors import UsageError

    found = []
    for word in text.split(","):
        number, unit = (word.strip()[:-1], word.strip()[-1:].upper()) if word.strip()[-1:].isalpha() else (word, "")
        factor = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit)
        if factor is None or not number.strip().isdecimal() or not 4 <= int(number) * factor <= 4 << 30:
            raise UsageError(
                f"--sizes {text}: {word!r} is not a size from 4 bytes to 4 GiB; give sizes such as 1K,64K,16M"
            )
        found.append(int(number) * factor)
    return sorted(set(found))


def make_result(answer: Mapping[str, Any], topology: Any, run: str | None, training: Any) -> BenchmarkResult:
    """Tables, verdict and notes of what rank 0 measured."""
    from dataclasses import replace

    from hotloop import __version__
    from hotloop.apply import TECHNIQUES
    from hotloop.bench.collective_times import (
        collect_notes,
        describe_choice,
        describe_slow_pairs,
        find_reached,
        fit_collectives,
        judge_pairs,
        tabulate_fits,
        tabulate_gradients,
        tabulate_pairs,
        tabulate_times,
        tabulate_ways_to_send,
    )
    from hotloop.bench.topology import judge_topology, tabulate_ways
    from hotloop.core.benchmarks import BenchmarkResult
    from hotloop.core.link_choice import choose_way
    from hotloop.diagnose.comm import read_exchange

    times, fits, pairs = tabulate_times(answer), fit_collectives(answer), judge_pairs(answer)
    slow = describe_slow_pairs(pairs, answer["hosts"])
    on_devices_here = answer["device"] != "cpu" and len(set(answer["hosts"])) == 1
    reached = find_reached(times) if on_devices_here else None
    verdict = [*([slow] if slow else []), *judge_topology(topology, reached)]
    notes = collect_notes(answer, fits)
    exchange = None if training is None else read_exchange(training.analysis)
    fit = fits.get("all-reduce")
    ways: list[Row] = []
    if exchange is not None and fit is not None:
        # The measured link may have another number of ranks than the recorded run.
        choice = choose_way(replace(exchange, ranks=answer["ranks"]), fit, TECHNIQUES)
        verdict.append(describe_choice(choice))
        ways = tabulate_ways_to_send(choice)
        notes.append("forecast of each way: for the recorded backward and buckets over the link that was measured here")
    elif training is not None:
        notes.append("no way of sending was forecast: the run has no time of backward, or the link no fit")
    if answer["device"] != "cpu" and topology.note:
        notes.append(topology.note)
    tables = [
        times,
        tabulate_fits(fits, answer["ranks"]),
        tabulate_pairs(pairs, answer["hosts"]),
        tabulate_ways(topology),
        tabulate_gradients(answer),
        ways,
    ]
    hosts = len(set(answer["hosts"]))
    return BenchmarkResult(
        tool_version=__version__,
        benchmark="comm",
        subject=f"{answer['ranks']} ranks on {hosts} host{'s' if hosts > 1 else ''}",
        tables=tuple(tuple(table) for table in tables),
        facts={
            "backend": answer["backend"],
            "device": answer["device_name"] or answer["device"],
            "ranks": answer["ranks"],
            "hosts": hosts,
        },
        machine={"torch": answer["torch"]},
        notes=tuple(notes),
        verdict=tuple(verdict),
    )
