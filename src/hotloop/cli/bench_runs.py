"""The benchmarks of `hotloop bench`: options -> a request to the user's Python, and what follows from its result."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop import __version__
from hotloop.agent.attach.child import resolve_command
from hotloop.change.apply import TECHNIQUES
from hotloop.cli.show import check_outputs, emit, show_report, take_command
from hotloop.core.benchmarks import BenchmarkResult, Row
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.link_choice import choose_way
from hotloop.core.link_fit import COLLECTIVES
from hotloop.core.machine import count_cores
from hotloop.evidence.analyze.measurement import measure_compute_ns
from hotloop.judge.diagnose.comm import read_exchange
from hotloop.measure.bench.collective_times import (
    SIZES,
    collect_notes,
    describe_choice,
    fit_collectives,
    loopback,
    plan_launch,
    tabulate_fits,
    tabulate_gradients,
    tabulate_times,
    tabulate_ways_to_send,
)
from hotloop.measure.bench.figures import (
    choose_workers,
    fill_ranks,
    judge_scaling,
    summarize_scaling,
    under_torchrun,
    wait_share,
)
from hotloop.measure.bench.program import find_python, run_program, split_target
from hotloop.pipeline.launches import launch_ranks, read_training

SLACK_S = 300.0
"""Time for importing and building the user's objects, in addition to the measuring."""
RANKS_SLACK_S = 180.0
"""For ranks that other hosts start: importing torch, and finding each other."""
MOST_COUNT = 4096
"""Limit on ranks or workers: more is a typing error."""


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
    }
    answer = _ask(arguments, request)
    tables = [list(table) for table in answer["tables"]]
    notes = ["second table: the parts of making a batch, each measured separately on one core"]
    if compute_ns is not None:
        for row in tables[0]:
            row["wait_of_step_ratio"] = wait_share(row["batch_ns"], compute_ns, workers=row["workers"])
        notes.append("wait of step: share of the recorded step, if each worker has its own core")
    return _show(arguments, "loader", arguments.target, answer, tables, notes)


def _ask(arguments: argparse.Namespace, request: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the program that measures in the user's Python."""
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
        raise UsageError("scaling cannot write JSON to standard output, which the training command uses; give a file")
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


def execute_comm(arguments: argparse.Namespace) -> int:
    _check(arguments)
    launch = plan_launch(os.environ, arguments.ranks)
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
    show_report(make_result(answer, training), arguments, sys.stdout)
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


def make_result(answer: Mapping[str, Any], training: Any) -> BenchmarkResult:
    """Tables, verdict and notes of what rank 0 measured."""
    times, fits = tabulate_times(answer), fit_collectives(answer)
    verdict = []
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
        notes.append("no way of sending was forecast: the run has no backward time, or the link has no fit")
    tables = [
        times,
        tabulate_fits(fits, answer["ranks"]),
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
    """Integers separated by commas, each once. Raises UsageError."""
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
    "comm": execute_comm,
}
"""By the word after ``hotloop bench``."""
