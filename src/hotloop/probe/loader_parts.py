"""A DataLoader -> what one of its batches costs in parts, measured in the user's Python.

The parts are those of BatchCost in core/worker_model.py: fetch and collate alone in this process on one thread, the
same on every core at once in forked children, and the handover of a finished batch from one worker.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

KEPT_BATCHES = 8
"""Lists of indices that the measurement takes turns with."""
LEAST_ROUNDS = 3
GROUP_COUNT, GROUPS_COUNT = 10, 100
"""The handover is timed in groups of batches; the shortest counts, for what disturbs one only makes it longer."""


class Repeated(torch.utils.data.Dataset[Any]):
    """The same finished batch again and again: loading it costs the handover alone."""

    def __init__(self, batch: Any, count: int) -> None:
        self.batch, self.count = batch, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return _copy(self.batch)


def measure_batch_cost(loader: Any, cores: int, budget_s: float) -> dict[str, float | int | None]:
    """Parts of a batch in ns (see BatchCost), ``batch_bytes`` of its tensors, and how often each was timed.

    ``fetch_cpu_ns`` is the time on a core and the time ready for one. ``send_ns``, ``receive_ns`` and ``start_ns`` are
    None where a worker could not be started, ``crowding_ratio`` where this system cannot fork or loading mostly waits.
    """
    fetch = _fetcher(loader)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        alone = _time_parts(loader, fetch, budget_s / 3)
        crowded_ns = _time_crowded(loader, fetch, cores, budget_s / 3) if cores > 1 else None
        handover = _time_handover(loader, alone["batch"], budget_s / 3)
    finally:
        torch.set_num_threads(threads)
    own_ns = alone["fetch_ns"] + alone["collate_ns"]
    cpu_ns = alone["fetch_cpu_ns"] + alone["collate_ns"]
    crowding = None
    if crowded_ns is not None and cpu_ns > own_ns / 2:  # loading that waits tells nothing of the cores
        crowding = max(1.0, (crowded_ns - (own_ns - cpu_ns)) / cpu_ns)
    found: dict[str, float | int | None] = {
        name: alone[name] for name in ("fetch_ns", "fetch_cpu_ns", "collate_ns", "rounds")
    }
    found["crowding_ratio"] = crowding
    found["batch_bytes"] = sum(one.numel() * one.element_size() for one in _tensors(alone["batch"]))
    return found | handover


def _fetcher(loader: Any) -> Callable[[], Any]:
    """A function that reads the samples of the next of a few batches, over and over."""
    data = loader.dataset
    if isinstance(data, torch.utils.data.IterableDataset):
        samples = itertools.chain.from_iterable(iter(data) for _ in itertools.repeat(None))
        size = loader.batch_size
        return lambda: next(samples) if size is None else list(itertools.islice(samples, size))
    state = torch.get_rng_state()
    indices: Iterator[Any] = itertools.cycle(list(itertools.islice(iter(loader._index_sampler), KEPT_BATCHES)))
    torch.set_rng_state(state)
    many = getattr(data, "__getitems__", None)
    if loader.batch_sampler is None:
        return lambda: data[next(indices)]
    return lambda: many(next(indices)) if many else [data[index] for index in next(indices)]


def _time_parts(loader: Any, fetch: Callable[[], Any], share_s: float) -> dict[str, Any]:
    fetches: list[int] = []
    cpus: list[int] = []
    collates: list[int] = []
    batch = loader.collate_fn(fetch())  # the first use of a data set opens its files
    deadline = time.perf_counter() + share_s
    while len(fetches) < LEAST_ROUNDS or time.perf_counter() < deadline:
        core_ns, begin_ns = _core_ns(), time.perf_counter_ns()
        samples = fetch()
        fetched_ns = time.perf_counter_ns()
        cpus.append(_core_ns() - core_ns)
        batch = loader.collate_fn(samples)
        fetches.append(fetched_ns - begin_ns)
        collates.append(time.perf_counter_ns() - fetched_ns)
    fetch_ns = statistics.median(fetches)
    return {
        "fetch_ns": fetch_ns,
        "fetch_cpu_ns": min(fetch_ns, statistics.median(cpus)),
        "collate_ns": statistics.median(collates),
        "rounds": len(fetches),
        "batch": batch,
    }


def _core_ns() -> int:
    """Time so far for which this process had a core, or was ready for one that others had."""
    try:
        with open("/proc/self/schedstat") as file:
            delay_ns = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        delay_ns = 0
    return time.process_time_ns() + delay_ns


def _time_crowded(loader: Any, fetch: Callable[[], Any], cores: int, share_s: float) -> float | None:
    """Wall time of making a batch, in ns, while as many processes as cores make batches."""
    if not hasattr(os, "fork"):
        return None
    children = []
    for _ in range(cores):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                times: list[int] = []
                deadline = time.perf_counter() + share_s
                while len(times) < LEAST_ROUNDS or time.perf_counter() < deadline:
                    begin_ns = time.perf_counter_ns()
                    loader.collate_fn(fetch())
                    times.append(time.perf_counter_ns() - begin_ns)
                os.write(writing, str(round(statistics.median(times))).encode())
            finally:
                os._exit(0)
        os.close(writing)
        children.append((child, reading))
    found = []
    for child, reading in children:
        text = os.read(reading, 64)
        os.close(reading)
        os.waitpid(child, 0)
        if text:
            found.append(int(text))
    return statistics.fmean(found) if found else None


def _time_handover(loader: Any, batch: Any, share_s: float) -> dict[str, float | None]:
    """What a worker that does nothing else takes for a batch, what this process computes for it, and the start."""
    settings: dict[str, Any] = {"num_workers": 1, "batch_size": None, "pin_memory": loader.pin_memory}
    if loader.multiprocessing_context is not None:
        settings["multiprocessing_context"] = loader.multiprocessing_context
    repeated = torch.utils.data.DataLoader(Repeated(batch, 2 + GROUP_COUNT * GROUPS_COUNT), **settings)
    begin_ns = time.perf_counter_ns()
    try:
        batches = iter(repeated)
        next(batches)
    except (RuntimeError, TypeError, AttributeError, OSError):  # a batch that cannot be sent, or no process to be had
        return {"send_ns": None, "receive_ns": None, "start_ns": None}
    start_ns = time.perf_counter_ns() - begin_ns
    walls: list[float] = []
    spent: list[float] = []
    deadline = time.perf_counter() + share_s
    while len(walls) < GROUPS_COUNT // 2 or (len(walls) < GROUPS_COUNT and time.perf_counter() < deadline):
        cpu_ns, begin_ns = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(GROUP_COUNT):
            next(batches)
        walls.append((time.perf_counter_ns() - begin_ns) / GROUP_COUNT)
        spent.append((time.process_time_ns() - cpu_ns) / GROUP_COUNT)
    del batches
    return {"send_ns": min(walls), "receive_ns": min(spent), "start_ns": float(start_ns)}


def _copy(value: Any) -> Any:
    """The batch anew: a tensor that was sent before already lies in shared memory."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy(one) for one in value))
    return type(value)(_copy(one) for one in value) if type(value) in (list, tuple) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
