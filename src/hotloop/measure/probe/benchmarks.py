"""Times of the user's model, loader, gradients and products on this machine, part by part; in the user's Python.

Arms take turns in blocks, so that a machine that gets slower meanwhile slows all of them; every figure is a minimum and
a median of n timings.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import hotloop
from hotloop.measure.probe.programs import BadRequest, load_function


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The benchmark that the request asks for, and the machine."""
    measure_parts = {"train": bench_train, "loader": bench_loader}[request["what"]]
    return measure_parts(request) | {
        "machine": {
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "threads": torch.get_num_threads(),
            "cores": len(os.sched_getaffinity(0)),
            "accelerator": _accelerator_name(),
        }
    }


def accelerator_kind() -> str | None:
    """'cuda' (ROCm too), 'xpu', 'mps' and the like, where this torch can compute on one; else None."""
    if not hasattr(torch, "accelerator"):  # before torch 2.6
        return "cuda" if torch.cuda.is_available() else None
    return str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else None


def _accelerator_name() -> str:
    kind = accelerator_kind()
    get_device_name = getattr(getattr(torch, kind or "cpu"), "get_device_name", None)
    return str(get_device_name()) if get_device_name is not None else kind or "none"


def _call(request: dict[str, Any]) -> Any:
    function = load_function(request["file"], request["function"])
    try:
        return function()
    except Exception as error:
        raise BadRequest(f"{request['function']}() raised {type(error).__name__}: {error}") from error


# ---- train


def bench_train(request: dict[str, Any]) -> dict[str, Any]:
    """The parts of a step on the user's model."""
    made = _call(request)
    if not isinstance(made, (tuple, list)) or not 2 <= len(made) <= 4 or not isinstance(made[0], torch.nn.Module):
        raise BadRequest(
            f"{request['function']}() returned {_describe(made)}; it must return (model, loader), (model, loader,"
            " optimizer) or (model, loader, optimizer, loss)"
        )
    model, loader, optimizer, loss = (*made, None, None)[:4]
    try:
        measured = hotloop.benchmark_training(
            model, loader, request.get("device"), optimizer=optimizer, loss=loss, budget_s=request["budget_s"]
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error
    found = asdict(measured)
    step = next(p["median_ns"] for p in found["parts"] if p["part"] == "whole step")
    rows = [
        {
            "part": p["part"],
            "min_ns": p["min_ns"],
            "median_ns": p["median_ns"],
            "of_step_ratio": p["median_ns"] / step,
            "n": p["n"],
        }
        for p in found["parts"]
    ]
    memory = [
        {"memory": k.removesuffix("_bytes").replace("_", " "), "size_bytes": v} for k, v in found["memory"].items()
    ]
    facts = {"device": found["device"], "batch_size": found["batch_size"], "optimizer": found["optimizer"]}
    notes = [*found["notes"], "parts are timed separately and may not sum to the whole step"]
    return {"tables": [rows, memory], "facts": facts, "notes": notes}


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values ({', '.join(type(one).__name__ for one in value)})"
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


# ---- loader


def bench_loader(request: dict[str, Any]) -> dict[str, Any]:
    """Batches per second of the user's loader with other numbers of workers, prefetching and pinning."""
    loader = _call(request)
    if isinstance(loader, (tuple, list)):
        loader = next((one for one in loader if isinstance(one, torch.utils.data.DataLoader)), loader)
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise BadRequest(f"{request['function']}() returned {_describe(loader)}; it must return a DataLoader")
    notes = []
    can_pin = accelerator_kind() not in (None, "mps")
    pins = [False, True] if can_pin else [bool(loader.pin_memory)]
    if not can_pin:
        notes.append("pinning was not tried: there is no accelerator")
    parts = time_batch_parts(loader, request["budget_s"] / 4)
    arms: list[dict[str, Any]] = []
    for workers in request["workers"]:
        for prefetch in request["prefetch"] if workers else [0]:
            arms += [{"workers": workers, "prefetch": prefetch, "pinned": pin} for pin in pins]
    seen: list[list[float]] = [[] for _ in arms]
    starts: list[list[int]] = [[] for _ in arms]
    deadline = time.perf_counter() + request["budget_s"]
    share_s = request["budget_s"] / (3 * len(arms))
    blocks = 0
    while blocks < 2 or (time.perf_counter() < deadline and blocks < 20):
        blocks += 1
        for number, arm in enumerate(arms):
            start_ns, rates = _time_loader(loader, arm, share_s)
            starts[number].append(start_ns)
            seen[number] += rates
    rows = []
    for arm, times, began in zip(arms, seen, starts, strict=True):
        median = statistics.median(times) if times else None
        rows.append(
            {
                **arm,
                "batches_per_s": None if median is None else 1e9 / median,
                "best_batches_per_s": 1e9 / min(times) if times else None,
                "start_ns": round(statistics.median(began)),
                "n": len(times),
            }
        )
    present = {
        "workers": loader.num_workers,
        "prefetch": loader.prefetch_factor or 0,
        "pinned": bool(loader.pin_memory),
    }
    for row in rows:
        row["batch_ns"] = None if row["batches_per_s"] is None else 1e9 / row["batches_per_s"]
        row["present"] = all(row[k] == v for k, v in present.items())
    notes.append("start: time to the first batch, including worker start; n: number of timed groups of batches")
    if any(not times for times in seen):
        notes.append("unknown: the dataset is too short to time more than the prefetched batches")
    facts = {"batch_size": loader.batch_size, **present, "blocks": blocks}
    return {"tables": [rows, [parts]], "facts": facts, "notes": notes}


def _time_loader(loader: Any, arm: dict[str, Any], share_s: float) -> tuple[int, list[float]]:
    """Start of one iterator, and ns per batch of stretches of its batches after those that were prepared meanwhile."""
    made = _rebuild(loader, arm)
    begin = time.perf_counter_ns()
    iterator = iter(made)
    first = next(iterator, None)
    start_ns = time.perf_counter_ns() - begin
    if first is None:
        raise BadRequest("the loader is empty; return a loader that yields batches")
    found: list[float] = []
    try:
        for _ in range(arm["workers"] * arm["prefetch"]):
            next(iterator)
        deadline = time.perf_counter() + share_s
        while not found or time.perf_counter() < deadline:
            # A stretch is a round of all workers: single batches come in bursts.
            count = max(1, arm["workers"]) * 2
            mark = time.perf_counter_ns()
            for _ in range(count):
                next(iterator)
            found.append((time.perf_counter_ns() - mark) / count)
    except StopIteration:  # an epoch ended: what was timed before counts
        return start_ns, found
    finally:
        del iterator  # ends the workers
    return start_ns, found


def _rebuild(loader: Any, arm: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {
        "num_workers": arm["workers"],
        "collate_fn": loader.collate_fn,
        "pin_memory": arm["pinned"],
        "timeout": loader.timeout if arm["workers"] else 0,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
    }
    if arm["workers"]:
        settings |= {"prefetch_factor": arm["prefetch"], "multiprocessing_context": loader.multiprocessing_context}
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) or loader.batch_sampler is None:
        settings |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last and loader.batch_size is not None}
        if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
            settings["sampler"] = loader.sampler
    else:
        settings["batch_sampler"] = loader.batch_sampler
    return torch.utils.data.DataLoader(loader.dataset, **settings)


KEPT_BATCHES = 8
"""Lists of indices that the measurement takes turns with."""
LEAST_ROUNDS = 3


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


def time_batch_parts(loader: Any, budget_s: float) -> dict[str, float | int]:
    """Parts of making a batch in ns, each alone on one core, ``batch_bytes`` of its tensors, and how often they were
    timed. ``fetch_cpu_ns`` is the time on a core and the time ready for one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        return _time_parts(loader, _fetcher(loader), budget_s)
    finally:
        torch.set_num_threads(threads)


def _time_parts(loader: Any, fetch: Callable[[], Any], share_s: float) -> dict[str, float | int]:
    fetches: list[int] = []
    cpus: list[int] = []
    collates: list[int] = []
    batch = loader.collate_fn(fetch())  # the first use of a dataset opens its files
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
        "batch_bytes": sum(one.nbytes for one in tree_leaves(batch) if isinstance(one, torch.Tensor)),
    }


def _core_ns() -> int:
    """Total time in which this process had a core, or was ready but waited for a core."""
    try:
        with open("/proc/self/schedstat") as file:
            delay_ns = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        delay_ns = 0
    return time.process_time_ns() + delay_ns
