"""A loop that takes its batches from a queue, a future, a socket or a sleep -> what it waits, and for what."""

from __future__ import annotations

import re

from hotloop.core.analysis import Line, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, saving_within
from hotloop.core.worker_model import LATENCY_CPU_RATIO
from hotloop.diagnose.lines import (
    FEWEST_SAMPLES,
    WAITING,
    add_shares,
    is_sleeping,
    is_waiting,
    places,
    time_of_kinds,
)
from hotloop.diagnose.measured import known_count
from hotloop.diagnose.thresholds import threshold_ratio
from hotloop.diagnose.wording import format_share, format_time, shorten_code

FLOOR_RATIO = 0.02
FIELDS = ("other_ns", "after_input_ns")
"""Where a loop takes its batch: after the last optimizer step, or before the forward."""
COMPUTING = ("forward", "backward", "optimizer")
CROWDED_PARTS = (0.3, 0.6)
"""Rule of thumb: likely and most of the computation's time that is saved where its cores are its own again."""
MOST_IDLE_CORES = 0.25
LEAST_HELD_RATIO = 0.3
HELD_PARTS = (0.05, 0.35, 0.7)
"""Rule of thumb: what is saved of the time in which another thread runs Python; it gives the lock away every 5 ms."""
LOW_RATIO, MID_RATIO = 0.3, 0.8
"""Rule of thumb: what is won of a wait by whoever makes batches fast enough, or ahead."""
CAUSES = (
    ("waits-on-purpose", re.compile(r"sleep"), "a pause on purpose"),
    ("slow-process", re.compile(r"^(multiprocessing|subprocess)"), "another process is too slow"),
    ("slow-machine", re.compile(r"^(socket|ssl|selectors|select|asyncio)"), "another machine or a file is too slow"),
    ("slow-producer", re.compile(r""), "what fills it is too slow, or waits in turn"),
)


def find_wait(rank: RankAnalysis) -> Finding | None:
    """The wait of a loop for batches that no DataLoader makes."""
    if known_count(rank, "micro_batches") > 0 or known_count(rank, "batches") >= 0.5 or rank.step_mean_ns <= 0:
        return None
    part = add_shares(*(time_of_kinds(rank, name, WAITING) for name in FIELDS))
    cost_ratio = min(1.0, part.mean_ns / rank.step_mean_ns)
    if not part.lines or cost_ratio < threshold_ratio(rank, floor_ratio=FLOOR_RATIO, judged_fields=FIELDS):
        return _find_lock_holder(rank)
    line = part.lines[0]
    cause, text = _cause_of(line)
    sure_ratio = part.low_ns / rank.step_mean_ns
    # What makes the batches on the training's own cores also slows down its computation.
    crowded_ratio = sum(map(rank.breakdown.share, COMPUTING)) if _is_crowded(rank, cause) else 0.0
    whole_ratio = min(1.0, cost_ratio + CROWDED_PARTS[1] * crowded_ratio)
    mid_ratio = MID_RATIO * cost_ratio + CROWDED_PARTS[0] * crowded_ratio
    crowd = "; it takes the cores that the training's threads compute on" if crowded_ratio else ""
    shown = f"`{shorten_code(line.text)}` in {line.where.function}" if line.text.strip() else line.where.function
    return Finding(
        title=f"every step waits {format_time(part.mean_ns)} ({format_share(cost_ratio)}) for its next batch, in "
        f"{shown}: {text}{crowd}",
        phase="other",
        cost_ns=round(part.mean_ns),
        time_ns={"other": round(part.mean_ns)},
        cost_ratio=whole_ratio,
        saving=saving_within(whole_ratio, LOW_RATIO * sure_ratio, mid_ratio, whole_ratio, Basis.RULE_OF_THUMB),
        evidence={
            "cause": cause,
            "samples": part.samples_count,
            "uses_cpu_meanwhile": rank.mean.get("cpu_ns", 0.0) > LATENCY_CPU_RATIO * rank.step_mean_ns,
        },
        where=(*places(part.lines), *places(_own_lines(rank))[:2]),
        fix=Fix(technique="preprocess-in-workers"),
    )


def _is_crowded(rank: RankAnalysis, cause: str) -> bool:
    """Whether no core is free while something on this machine makes the batches, and all cores are to compute."""
    idle, threads, cores = rank.idle_cores, rank.torch_threads, rank.cores
    if cause not in ("slow-process", "slow-producer") or idle is None or not threads or not cores:
        return False
    return threads * max(1, rank.world_size) >= cores and idle[0] < MOST_IDLE_CORES


def _find_lock_holder(rank: RankAnalysis) -> Finding | None:
    """A thread of the script's that makes the batches in Python: the loop hardly waits for them, but each of its lines
    and operators waits for the interpreter's lock."""
    if not any(is_waiting(line) for name in FIELDS for line in rank.lines.get(name, ())):
        return None
    python = _own_lines(rank)
    seen = sum(line.samples for line in rank.thread_lines)
    held_ratio = (rank.threads_at_work or 0.0) * sum(line.samples for line in python) / max(1, seen)
    if held_ratio < LEAST_HELD_RATIO or sum(line.samples for line in python) < FEWEST_SAMPLES:
        return None
    held_ratio = min(1.0, held_ratio)
    low, mid, high = (part * held_ratio for part in HELD_PARTS)
    line = python[0]
    return Finding(
        title=f"a thread of yours makes the batches and runs Python for {format_share(held_ratio)} of the time, in "
        f"{line.where.function}: the training loop waits for the interpreter's lock in all that it does",
        cost_ratio=high,
        saving=saving_within(high, low, mid, high, Basis.RULE_OF_THUMB),
        evidence={"cause": "thread-holds-lock", "held_ratio": round(held_ratio, 3), "samples": seen},
        where=places(python),
        fix=Fix(technique="preprocess-in-workers"),
    )


def _own_lines(rank: RankAnalysis) -> tuple[Line, ...]:
    """Lines of other threads that no function of a library was called from: they run the script's own Python."""
    return tuple(line for line in rank.thread_lines if line.leaf.startswith("__main__:"))


def _cause_of(line: Line) -> tuple[str, str]:
    leaf = "sleep" if is_sleeping(line) else line.leaf
    return next((cause, text) for cause, pattern, text in CAUSES if pattern.search(leaf))
