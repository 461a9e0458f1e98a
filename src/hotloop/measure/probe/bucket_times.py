"""Backwards that send the present DDP buckets, and default ones, between processes of this host.

A bucket is sent while backward computes on, as DDP does it: where ranks fill the cores, each small all-reduce waits for
a core that computes, which an exchange on idle cores does not show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hotloop.measure.probe.clock import middle

MOST_BACKWARD_NS = 200_000_000
"""A longer backward is cut to this: whatever buckets save is saved at its end."""
MOST_ARM_NS = 2_000_000_000
FEWEST_ROUNDS, MOST_ROUNDS = 3, 9
FIRST_BYTES, DEFAULT_BYTES = 1 << 20, 25 << 20
"""DDP's default buckets: a small first one, so that sending begins early."""
WIDTH = 128
"""Size of the square matrices whose product represents a piece of backward: some tens of microseconds."""


def measure(plan: Mapping[str, Any]) -> dict[str, int]:
    """One rank of the bucket measurement, a process of its own.

    ns of a backward that sends all gradients in ``buckets`` present ones, and in ``large_buckets`` default ones;
    ``compute_ns`` is the same computation without sending.
    """
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{plan['store']}", rank=int(os.environ["RANK"]), world_size=plan["ranks"]
    )
    sizes = [max(1, size // 4) for size in plan["bucket_sizes"]]
    large = split_as_default(sum(sizes), 4)
    matrix, product = torch.ones(WIDTH, WIDTH), torch.empty(WIDTH, WIDTH)
    backward_ns = min(float(plan["backward_ns"]), MOST_BACKWARD_NS)
    pieces = round(backward_ns / _time_pieces(matrix, product, 64) * 64)

    def run_backward(tensors: Sequence[torch.Tensor], total: int) -> None:
        sent, done, works = 0, 0, []
        for one in tensors:
            sent += one.numel()
            due = pieces * sent // total
            _compute(matrix, product, due - done)
            done = due
            works.append(dist.all_reduce(one, async_op=True))
        _compute(matrix, product, pieces - done)
        for work in works:
            work.wait()

    arms = {
        name: [torch.zeros(n) for n in parts] for name, parts in (("present", sizes), ("large", large), ("none", []))
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, round(MOST_ARM_NS / max(1.0, backward_ns))))
    for turn in range(rounds):
        for name, tensors in arms.items():
            dist.barrier()
            begin_ns = time.perf_counter_ns()
            run_backward(tensors, sum(sizes))
            taken = time.perf_counter_ns() - begin_ns
            if turn:
                times[name].append(taken)
    dist.destroy_process_group()
    return {
        "buckets": len(sizes),
        "large_buckets": len(large),
        "ranks": int(plan["ranks"]),
        "present_ns": round(middle(times["present"])),
        "large_ns": round(middle(times["large"])),
        "compute_ns": round(middle(times["none"])),
    }


def split_as_default(count: int, item_bytes: int) -> list[int]:
    """How the items are split over DDP's default buckets; a model that fits into the first has one.

    >>> split_as_default(8_000_000, 4)
    [262144, 6553600, 1184256]
    >>> split_as_default(1000, 4)
    [1000]
    """
    first, cap = FIRST_BYTES // item_bytes, DEFAULT_BYTES // item_bytes
    rest = max(0, count - first)
    return [min(first, count), *(min(cap, rest - begin) for begin in range(0, rest, cap))]


def _compute(matrix: torch.Tensor, product: torch.Tensor, pieces: int) -> None:
    for _ in range(pieces):
        torch.mm(matrix, matrix, out=product)


def _time_pieces(matrix: torch.Tensor, product: torch.Tensor, pieces: int) -> float:
    """ns of a number of pieces, the median of some rounds."""
    times = []
    for _ in range(MOST_ROUNDS):
        begin_ns = time.perf_counter_ns()
        _compute(matrix, product, pieces)
        times.append(float(time.perf_counter_ns() - begin_ns))
    return max(1.0, middle(times))
