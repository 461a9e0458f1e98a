"""The benchmarks of `hotloop bench`: options -> a request to the user's Python, and what follows from its answer."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.analyze.measurement import measure_compute_ns
from hotloop.apply import TECHNIQUES
from hotloop.attach.child import resolve_command
from hotloop.bench.collective_times import (
    SIZES,
    collect_notes,
    describe_choice,
    describe_slow_pairs,
    find_reached,
    fit_collectives,
    judge_pairs,
    loopback,
    plan_launch,
    tabulate_fits,
    tabulate_gradients,
    tabulate_pairs,
    tabulate_times,
    tabulate_ways_to_send,
)
from hotloop.bench.figures import (
    add_forecasts,
    choose_workers,
    cost_of,
    fill_ranks,
    find_products,
    judge_scaling,
    parse_rates,
    parse_sizes,
    summarize_scaling,
    tabulate_exchanges,
    under_torchrun,
    wait_share,
)
from hotloop.bench.program import find_python, run_program, split_target
from hotloop.bench.topology import judge_topology, read_nccl_log, read_topology, tabulate_ways
from hotloop.cli.show import check_outputs, emit, show_report, take_command
from hotloop.core.benchmarks import BenchmarkResult, Row, ScalingRun
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.link_choice import choose_way
from hotloop.core.link_fit import COLLECTIVES
from hotloop.core.machine import count_cores
from hotloop.diagnose.comm import read_exchange
from hotloop.pipeline.launches import launch_ranks, read_training
from hotloop.tune.trials import protect_environment
from hotloop.tune.workspace import make_workspace, plan_workspace, remove_workspace

SLACK_S = 300.0
"""What importing and building the user's objects may take beside the measuring."""
RANKS_SLACK_S = 180.0
"""For ranks that other hosts start: importing torch, and finding each other."""
MOST_COUNT = 4096
"""Of ranks, workers, or Mi elements: more is a typing error."""
DTYPES = ("float32", "bfloat16", "float16")


def execute_train(arguments: argparse.Namespace) -> int:
    file, function = split_target(arguments.target)
    request = {"what": "train", "file": file, "function": function, "device": arguments.device}
    answer = _ask(arguments, request)
    return _show(arguments, "train", arguments.target, answer, answer["tables"])


def execute_loader(arguments: argparse.Namespace) -> int:
    file, function = split_target(arguments.target)
    given = arguments.workers
    workers = parse_integers("--workers", given, 0) if given else choose_workers(count_cores())
    prefetch = parse_integers("--prefetch", arguments.prefetch, 1)
    compute_ns = None if arguments.run is None else measure_compute_ns(read_training(arguments.run)[0])
    request: dict[str, Any] = {
        "what": "loader",
        "file": file,
        "function": function,
        "workers": workers,
        "prefetch": prefetch,
        "cores": count_cores(),
    }
    answer = _ask(arguments, request)
    tables = [list(table) for table in answer["tables"]]
    add_forecasts(tables[0], cost_of(tables[1][0]), request["cores"])
    notes = ["forecast: from the parts in the second table alone (docs/bench.md)"]
    if compute_ns is not None:
        for row in tables[0]:
            row["wait_of_step_ratio"] = wait_share(row["batch_ns"], compute_ns, workers=row["workers"])
        notes.append("wait of step: share of the recorded step, if each worker has its own core")
    return _show(arguments, "loader", arguments.target, answer, tables, notes)


def execute_gemm(arguments: argparse.Namespace) -> int:
    if (arguments.run is None) == (arguments.sizes is None):
        raise UsageError("give --run RUN for the shapes of a recorded model, or --sizes MxKxN,...")
    dtypes = [one.strip() for one in arguments.dtypes.split(",")]
    for one in dtypes:
        if one not in DTYPES:
            raise UsageError(f"--dtypes {one}: unknown; choose from {', '.join(DTYPES)}")
    notes = []
    if arguments.sizes is not None:
        shapes, subject, python = parse_sizes(arguments.sizes), arguments.sizes, None
    else:
        training, python = read_training(arguments.run)
        recorded = training.lead.rank.ops
        if not recorded or not recorded.get("ops"):
            raise UsageError(
                f"{arguments.run} contains no recorded operators (recorded only on a CPU, with --deep); use --sizes"
            )
        shapes, left = find_products(recorded["ops"])
        if not shapes:
            raise UsageError(f"{arguments.run}: the recorded step contains no matrix product; use --sizes")
        notes = ["convolutions and fused attention are not included"]
        if left:
            notes.append(f"{left} smaller products were left out")
        subject = f"products of one step of {arguments.run}"
    if arguments.python is None:
        arguments.python = python
    request = {"what": "gemm", "shapes": shapes, "dtypes": dtypes, "device": arguments.device}
    answer = _ask(arguments, request)
    return _show(arguments, "gemm", subject, answer, answer["tables"], notes)


def execute_compress(arguments: argparse.Namespace) -> int:
    rates = parse_rates(arguments.links)
    request: dict[str, Any] = {
        "what": "compress",
        "sizes": parse_integers("--sizes", arguments.sizes, 1),
        "device": arguments.device,
        "memory_bytes": available_bytes(),
    }
    if arguments.target is not None:
        request["file"], request["function"] = split_target(arguments.target)
    answer = _ask(arguments, request)
    notes = [
        "error: L2 norm of what one exchange changes, relative to the gradient's; int8 and topk keep it for "
        "the next step",
        "wire: what one of two ranks sends, at the link's full rate and without latency; speed-up: over float32 on the "
        "same link, if compressing, sending and restoring follow each other and backward hides none of it",
    ]
    tables = (answer["rows"], tabulate_exchanges(answer["rows"], rates))
    facts = {"device": answer["device"]}
    return _show(
        arguments, "compress", arguments.target or "random gradients", {**answer, "facts": facts}, tables, notes
    )


def available_bytes() -> int:
    """Half of the memory that is free now: the rest belongs to others."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _ask(arguments: argparse.Namespace, request: Mapping[str, Any]) -> dict[str, Any]:
    """What the program answers that measures in the user's Python."""
    _check(arguments)
    python = find_python(arguments.python, os.environ.get("PATH"))
    asked = {**request, "budget_s": arguments.budget}
    return run_program("benchmarks", asked, python, 4 * arguments.budget + SLACK_S)


def _check(arguments: argparse.Namespace) -> None:
    """Raises UsageError before anything starts."""
    check_outputs(arguments.json, arguments.html)
    if not 0 < arguments.budget <= 3600:
        raise UsageError(f"--budget {arguments.budget}: give seconds between 0 and 3600")


def _show(
    arguments: argparse.Namespace,
    benchmark: str,
    subject: str,
    answer: Mapping[str, Any],
    tables: Sequence[Sequence[Row]],
    notes: Sequence[str] = (),
) -> int:
    result = BenchmarkResult(
        tool_version=__version__,
        benchmark=benchmark,
        subject=subject,
        tables=tuple(tuple(table) for table in tables),
        facts=answer["facts"],
        machine=answer.get("machine", {}),
        notes=(*answer.get("notes", ()), *notes),
        verdict=tuple(answer.get("verdict", ())),
    )
    show_report(result, arguments, sys.stdout)
    return 0


def execute_scaling(arguments: argparse.Namespace) -> int:
    command = take_command(arguments, "run", "bench scaling -- train.py")
    if arguments.json == "-":
        raise UsageError("scaling cannot write JSON to standard output, which belongs to the training; give a file")
    if arguments.repeats < 1:
        raise UsageError(f"--repeats {arguments.repeats}: give a number of at least 1")
    check_outputs(arguments.json, arguments.html)
    sizes = sorted(set(parse_integers("--ranks", arguments.ranks, 1)))
    launches = {size: _resolve(command, size) for size in sizes}
    stem = f"scaling-{os.getpid()}"
    runs = []
    for repeat in range(arguments.repeats):
        for size in sizes if repeat % 2 == 0 else reversed(sizes):  # what drifts hits all sizes alike
            name = f"{stem}-{size}-{repeat + 1}"
            emit(f"{size} rank{'s' if size > 1 else ''}, launch {repeat + 1}")
            runs.append(launch_ranks(launches[size], size, name))
            if arguments.without_sync and size > 1:
                if not runs[-1].has_ddp:
                    emit("the training does not use DistributedDataParallel: there is no gradient sync to leave out")
                    continue
                emit(f"{size} ranks, launch {repeat + 1} without gradient sync")
                runs.append(_launch_unsynced(launches[size], size, f"{name}-unsynced"))
    try:
        rows, kind, notes = summarize_scaling(runs)
    except ZeroDivisionError:
        raise HotloopError("a recorded run has no time per step; record it again with more steps") from None
    facts = {"scaling": kind, "runs": f".hotloop/{stem}-*"}
    answer = {"facts": facts, "verdict": judge_scaling(runs, rows)}
    return _show(arguments, "scaling", " ".join(command), answer, (rows,), notes)


def _resolve(command: Sequence[str], size: int) -> list[str]:
    """The command under torchrun of the Python that it names."""
    words = [fill_ranks(word, size) for word in command]
    return under_torchrun(resolve_command(words, os.environ.get("PATH")), size)


def _launch_unsynced(words: list[str], size: int, name: str) -> ScalingRun:
    """One recorded launch in which DDP reduces no gradients: in a working copy, so that no checkpoint is spoiled."""
    plan = plan_workspace(Path.cwd(), without=[Path.cwd() / ".hotloop"])
    for warning in plan.warnings:
        emit(warning)
    with tempfile.TemporaryDirectory(prefix="hotloop-unsynced-") as folder:
        copy = make_workspace(plan, Path(folder) / "work")
        try:
            variables = protect_environment(os.environ)
            return launch_ranks(words, size, name, variables=variables, cwd=copy, unsynced=True)
        finally:
            remove_workspace(copy)


def execute_comm(arguments: argparse.Namespace) -> int:
    _check(arguments)
    launch = plan_launch(os.environ, arguments.ranks)
    log = None if arguments.nccl_log is None else read_nccl_log(arguments.nccl_log)
    training, python = (None, None) if arguments.run is None else read_training(arguments.run)
    buckets = None if training is None else find_buckets(training, arguments.run)
    request: dict[str, Any] = {
        "budget_s": arguments.budget,
        "collectives": COLLECTIVES,
        "sizes": SIZES if arguments.sizes is None else parse_byte_sizes(arguments.sizes),
        "backend": arguments.backend,
        "buckets": buckets,
        "timeout_s": RANKS_SLACK_S + 4 * arguments.budget,
    }
    variables = launch.variables
    if launch.is_alone:
        request["store"] = "{folder}/store"
        variables = tuple({**one, **loopback(os.environ)} for one in variables)
    found = find_python(arguments.python or python, os.environ.get("PATH"))
    answer = run_program("link_times", request, found, RANKS_SLACK_S + 4 * arguments.budget, ranks=variables)
    if launch.rank != 0:
        return 0
    show_report(make_result(answer, read_topology(log), arguments.run, training), arguments, sys.stdout)
    return 0


def find_buckets(training: Any, run: str) -> list[int]:
    """Bytes of the recorded gradient buckets. Raises UsageError where the training has none."""
    ddp = training.analysis.lead.ddp
    if ddp is None or not ddp.bucket_sizes:
        raise UsageError(f"--run {run}: no gradient buckets of DistributedDataParallel were recorded; leave --run out")
    return list(ddp.bucket_sizes)


def parse_byte_sizes(text: str) -> list[int]:
    """Bytes of ``1K,64K,16M``. Raises UsageError.

    >>> parse_byte_sizes("1K,2M")
    [1024, 2097152]
    """
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


def parse_integers(option: str, text: str, least: int) -> list[int]:
    """Whole numbers separated by commas, each once. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and least <= int(word) <= MOST_COUNT for word in words):
        raise UsageError(
            f"{option} {text}: give numbers from {least} to {MOST_COUNT} separated by commas, such as 1,2,4"
        )
    return list(dict.fromkeys(int(word) for word in words))


BENCHMARKS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "train": execute_train,
    "loader": execute_loader,
    "scaling": execute_scaling,
    "gemm": execute_gemm,
    "compress": execute_compress,
    "comm": execute_comm,
}
"""By the word behind ``hotloop bench``."""
