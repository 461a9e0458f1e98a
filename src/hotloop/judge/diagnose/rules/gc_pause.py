"""gc-pause: Python's garbage collector pauses the training loop."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Fix, Value, saving_of_removal
from hotloop.core.recording import TIME_FIELDS
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import COLLECTING, field_lines, places
from hotloop.judge.diagnose.measured import (
    format_interval,
    format_share,
    format_time,
    known_count,
    known_mean,
    threshold_ratio,
)


@rule("gc-pause", "Python's garbage collector pauses the training loop", ablation="no-gc")
def gc_pause(analysis: Analysis) -> Finding | None:
    """## What it does
    Measures the pauses of Python's cyclic garbage collector during steps, and separates collections that the program
    requests (`gc.collect()`) from automatic ones.

    ## Why it costs
    A full collection visits every container object in the process. A data set held as Python lists or dictionaries
    consists of millions of objects, and each full collection visits all of them but frees almost nothing. In
    distributed training, each rank pauses at a different moment, and all ranks wait for each pause.

    ## How to recognize it
    The interpreter reports the start and end of every collection. Together, the collections take a measurable part of
    the step.

    ## What to do
    Remove `gc.collect()` from the loop. Call `gc.freeze()` once the data set and the model exist, so that collections
    skip them, or call `gc.disable()` and collect every few hundred steps. Hold large tables as arrays or tensors, not
    Python objects.

    ## When it is wrong
    A program that creates reference cycles in every step needs collections, or its memory grows: watch memory after the
    change. Collections on other threads count too, because they hold the interpreter lock.
    """

    def pause_ratio(index: int) -> float:
        one = analysis.ranks[index]
        return (known_mean(one, "gc_ns") or 0.0) / max(1.0, one.step_mean_ns)

    rank = analysis.ranks[max(range(len(analysis.ranks)), key=pause_ratio)]
    pause_ns = known_mean(rank, "gc_ns") or 0.0
    if rank.step_mean_ns <= 0:
        return None
    cost_ratio = min(1.0, pause_ns / rank.step_mean_ns)
    if pause_ns <= 0 or cost_ratio < threshold_ratio(rank, judged_fields=("gc_ns",)):
        return None
    count = known_count(rank, "gc_count")
    explicit = tuple(line for name in TIME_FIELDS for line, kind in field_lines(rank, name) if kind == COLLECTING)
    each_ns = pause_ns / count if count > 0 else pause_ns
    how = "gc.collect() runs" if explicit else "garbage collection pauses the loop"
    settings: dict[str, Value] = {"remove_explicit": True} if explicit else {"freeze": True}
    return Finding(
        title=f"{how} {format_interval(1.0 / count) if count > 0 else ''}: {format_time(each_ns)} each, "
        f"{format_share(cost_ratio)} of the run",
        cost_ns=round(pause_ns),
        cost_ratio=cost_ratio,
        saving=saving_of_removal(cost_ratio),
        evidence={
            "collections_per_step": round(count, 4),
            "pause_ns": round(each_ns),
            "explicit": bool(explicit),
        },
        where=places(explicit),
        fix=Fix(technique="gc-freeze", settings=settings),
    )
