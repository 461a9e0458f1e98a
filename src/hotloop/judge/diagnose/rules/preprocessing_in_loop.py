"""preprocessing-in-loop: Python code in the loop body prepares batches, outside any DataLoader."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Saving, Skipped, saving_within
from hotloop.core.rules import rule
from hotloop.core.worker_model import LoadingWork, best_overlap
from hotloop.judge.diagnose.lines import (
    BATCH,
    BOOKKEEPING,
    COLLECTING,
    EXCHANGING,
    LOGGING,
    SAVING,
    VALIDATING,
    WAITING,
    WEIGHTS,
    FieldShare,
    add_shares,
    own_ns,
    places,
    time_of_batches_after_acting,
    time_of_kinds,
    time_of_lines,
    time_of_prefetching,
    time_of_unclear_batches,
)
from hotloop.judge.diagnose.loading import (
    PREPARED_MID_RATIO,
    busy_cores,
    cores_per_rank,
    slow_tokenizer,
)
from hotloop.judge.diagnose.measured import (
    NOISE_MULTIPLE,
    format_share,
    format_time,
    has_loader,
    known_count,
    threshold_ratio,
)

FLOOR_RATIO = 0.02

HIDDEN_RATIO = 0.10
HIDDEN_NS = 1_000_000
"""A gap after bookkeeping that is at least this long is worth a line, although nobody can say what fills it."""
GAPS_WITHOUT_LOADER = ("other_ns", "after_backward_ns")
"""Where a loop without a DataLoader makes its batch: before the first forward, or between two micro-batches."""
BEFORE_BACKWARD = "after_forward_ns"
"""Between forward and backward, a loop may fetch its next batch. The loss is computed there too, so only lines whose
statement makes the next step's batch count."""
AFTER_ACTING = "after_nograd_ns"
"""The gap after a forward without gradients also counts: a replay buffer is read there once an agent has acted."""


@rule(
    "preprocessing-in-loop",
    "Python code in the loop body prepares batches, outside any DataLoader",
    ablation="skip-statement",
)
def preprocessing_in_loop(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Measures the Python work between the arrival of a batch and its forward pass: tokenizing, padding, augmenting,
    converting. In a loop without a DataLoader (`get_batch()`), measures the lines that make the batch, wherever in the
    step they are: before the forward, after the backward, or between the two, for the next step.

    ## Why it costs
    Nothing trains while this code runs in the loop body. In DataLoader workers, the same code would prepare the next
    batch during the current step.

    ## How to recognize it
    The gap between the arrival of the last batch and the forward is a substantial part of the step, and stack samples
    in that gap show lines of your own (listed in the finding) that neither log nor handle weights. The loss and metrics
    are also computed between forward and backward. A line between the two counts only if the loop's source shows that
    its statement makes input for the next forward and uses no result of the current one.

    ## What to do
    Move these lines into the data set's `__getitem__` or into `collate_fn` and give the DataLoader workers, or prepare
    the samples once, before training; `hotloop.cache_samples(loader)` keeps the results of `__getitem__` for the next
    epochs. If the lines loop over items, work on entire tensors. A tokenizer written in Python is reported as
    `slow_tokenizer`; `use_fast=True` selects the Rust version.

    ## When it is wrong
    Work that needs the model (hard-example mining, self-play) cannot move into a worker. Augmentation that deliberately
    runs on the accelerator belongs in the loop. A forward that is written as plain functions, without any module call,
    looks like a gap and is not judged. If a function with a name like `next_batch` runs between forward and backward,
    and the source does not show where its result goes (an attribute, a queue), the severity is info and the low
    forecast is zero.
    """
    rank = max(analysis.ranks, key=lambda one: _gap_ns(one) / max(1.0, one.step_mean_ns))
    if known_count(rank, "forwards") <= 0:
        return Skipped(
            reason="no module was called in a step, so the time to prepare a batch cannot be separated from the time "
            "to compute with it",
        )
    threshold = threshold_ratio(
        rank, floor_ratio=FLOOR_RATIO, judged_fields=("after_input_ns", "other_ns", BEFORE_BACKWARD)
    )
    if rank.step_mean_ns <= 0 or _gap_ns(rank) / rank.step_mean_ns < threshold:
        return None
    if not any(
        rank.lines.get(name) for name in ("after_input_ns", *GAPS_WITHOUT_LOADER, BEFORE_BACKWARD, AFTER_ACTING)
    ):
        return Skipped(
            reason=f"{format_share(_gap_ns(rank) / rank.step_mean_ns)} of the step passes between batch and forward, "
            "but there are too few stack samples to show in which lines",
        )
    work = _preparation(rank)
    cost_ratio = min(1.0, work.mean_ns / rank.step_mean_ns)
    if cost_ratio < threshold or not work.lines:
        return None if has_loader(rank) else _unclear_batches(rank)
    line = work.lines[0]
    return Finding(
        title=f"preparing the batch in the loop body takes {format_time(work.mean_ns)} ({format_share(cost_ratio)}) of "
        f"every step: {_describe_line(line.where.function, line.text)}",
        phase="other",
        cost_ns=round(work.mean_ns),
        time_ns={"other": round(work.mean_ns)},
        cost_ratio=cost_ratio,
        saving=_forecast(rank, work, cost_ratio),
        evidence={
            "samples": work.samples_count,
            "low_ns": round(work.low_ns),
            "high_ns": round(work.high_ns),
            "has_loader": has_loader(rank),
            "cores": rank.cores,
            "slow_tokenizer": slow_tokenizer(work.lines),
        },
        where=places(work.lines),
        fix=Fix(technique="preprocess-in-workers"),
    )


def _unclear_batches(rank: RankAnalysis) -> Finding | None:
    """Functions between forward and backward that look like making a batch, if the source shows no more: info."""
    found = time_of_unclear_batches(rank)
    cost_ratio = min(1.0, found.mean_ns / rank.step_mean_ns)
    if cost_ratio < HIDDEN_RATIO or found.mean_ns < HIDDEN_NS:
        return None
    line = found.lines[0]
    return Finding(
        title=f"{format_time(found.mean_ns)} ({format_share(cost_ratio)}) of every step passes between forward and "
        f"backward in what may be making the next batch: {_describe_line(line.where.function, line.text)}",
        phase="other",
        cost_ns=round(found.mean_ns),
        time_ns={"other": round(found.mean_ns)},
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, 0.0, cost_ratio / 2, cost_ratio, Basis.RULE_OF_THUMB),
        evidence={"samples": found.samples_count, "has_loader": False, "cores": rank.cores},
        where=places(found.lines),
        fix=Fix(technique="preprocess-in-workers"),
    )


def _gap_ns(rank: RankAnalysis) -> float:
    """The time in which preparation can hide, per step."""
    names = ("after_input_ns",) if has_loader(rank) else (*GAPS_WITHOUT_LOADER, BEFORE_BACKWARD, AFTER_ACTING)
    return sum(own_ns(rank, name) for name in names)


def _preparation(rank: RankAnalysis) -> FieldShare:
    """All work between a batch and its forward that is not clearly something else; without a loader, batch-like
    lines."""
    if has_loader(rank):
        others = (LOGGING, WEIGHTS, COLLECTING, BOOKKEEPING, SAVING, VALIDATING, EXCHANGING, WAITING)
        return time_of_lines(rank, "after_input_ns", lambda _, kind: kind not in others)
    parts = [time_of_kinds(rank, name, BATCH) for name in GAPS_WITHOUT_LOADER]
    return add_shares(*parts, time_of_prefetching(rank), time_of_batches_after_acting(rank))


def _forecast(rank: RankAnalysis, work: FieldShare, cost_ratio: float) -> Saving:
    """The step with this work in loader workers, simulated for the cores of this rank."""
    step_ns = rank.step_mean_ns
    compute_ns = max(1.0, step_ns - work.mean_ns)
    cores = cores_per_rank(rank) or 1.0
    # Python work of this kind keeps one core busy; the process's CPU time meanwhile shows whether it sleeps instead.
    busy = min(cores, busy_cores(rank, work.mean_ns, work.mean_ns))
    batches = max(1.0, known_count(rank, "micro_batches"))
    loading = LoadingWork(wall_ns=work.mean_ns, cpu_ns=work.mean_ns)
    overlap = best_overlap(compute_ns=compute_ns, work=loading, batches=batches, cores=cores, busy=busy)
    low, mid, high = (max(0.0, 1.0 - ns / step_ns) for ns in (overlap.worst_ns, overlap.mid_ns, overlap.best_ns))
    if mid < 0.4 * cost_ratio and (cores - busy) * compute_ns < 0.5 * work.mean_ns:
        # No core is free: it only helps to prepare samples before training, which leaves a copy.
        mid, high = PREPARED_MID_RATIO * cost_ratio, cost_ratio
    low = max(0.0, low * work.low_ns / work.mean_ns - NOISE_MULTIPLE * rank.step_noise_ratio)
    return saving_within(cost_ratio, low, mid, high, Basis.SIMULATED)


def _describe_line(function: str, text: str) -> str:
    shown = text.strip()
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"`{shown}` in {function}" if shown else f"in {function}"
