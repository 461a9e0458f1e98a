"""blocking-checkpoint: the training loop waits while a checkpoint is written."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Fix, Skipped, saving_of_removal
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import SAVING, most_saving_rank, places, saving_rank, time_between_phases
from hotloop.judge.diagnose.measured import (
    aftermath_ns,
    format_interval,
    format_share,
    format_time,
    known_count,
    recurs_unevenly,
    steps_between,
)

UNJUDGED_RATIO = 0.10
"""From this share of the steps on, saves too few or too uneven to judge are reported as not judged."""


@rule("blocking-checkpoint", "the training loop waits while a checkpoint is written", ablation="skip-saves")
def blocking_checkpoint(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Measures the time that training steps spend in `torch.save` and similar functions.

    ## Why it costs
    A plain save copies the state to the host, serializes it and writes it to storage while nothing trains. With
    several ranks, the others wait for the rank that saves.

    ## How to recognize it
    The `checkpoint` phase takes a material share of the run. Each save is timed separately, so recurring saves are
    judged by their own spread, however uneven the steps between them are. A single save is compared with the noise in
    the step times. The finding reports how long a save takes and how often it happens. The cost includes slower
    computation after a save (colder caches, pages returned to the system, disk writes that continue), compared with
    steps that are far from any save.

    ## What to do
    Save asynchronously: copy the state to pinned or shared memory inside the step, and write it from a thread or a
    process (`torch.distributed.checkpoint.async_save`). Or save less often: choose the interval based on how long a
    save takes and how often the machine fails.

    ## When it is wrong
    The last or only checkpoint of a run says little about a longer run. A small model on a fast disk saves in less time
    than it takes to set up an asynchronous copy. Asynchronous saving needs memory for one more copy of the state, and
    its writer competes for cores.
    """
    rank = saving_rank(analysis)
    if rank is None:
        share = most_saving_rank(analysis).breakdown.share("checkpoint")
        if share < UNJUDGED_RATIO:
            return None
        return Skipped(
            reason=f"saving took {format_share(share)} of the steps, but there are too few saves, or they vary too "
            "much, to separate their cost from noise; record more steps"
        )
    written_ratio = min(1.0, rank.breakdown.share("checkpoint"))
    beside = time_between_phases(rank, SAVING)
    stopped_ns = float(rank.breakdown.mean_ns("checkpoint")) + beside.mean_ns
    stopped_ratio = min(1.0, stopped_ns / rank.step_mean_ns) if beside.mean_ns > 0 else written_ratio
    slower_ns = aftermath_ns(rank, "checkpoints")
    mean_ns = stopped_ns + slower_ns
    cost_ratio = min(1.0, stopped_ratio + slower_ns / rank.step_mean_ns)
    files = _files_per_checkpoint(rank.columns["checkpoints"])
    per_step = known_count(rank, "checkpoints") / files
    seen = per_step * rank.steady_count
    each_ns = stopped_ns / per_step if per_step > 0 else stopped_ns
    # n saves show how often saves happen to within about 1/n; a single one says little about a longer run.
    certainty = seen / (seen + 1.0)
    every = steps_between(rank.columns["checkpoints"]) or (1.0 / per_step if per_step > 0 else None)
    return Finding(
        title=f"saving a checkpoint stops the loop for {format_time(each_ns)} "
        f"{format_interval(every, recurs_unevenly(rank.columns['checkpoints'])) if every else ''}: "
        f"{format_share(stopped_ratio)} of the run"
        + (f", plus {format_share(cost_ratio - stopped_ratio)} in slower steps after it" if slower_ns > 0 else ""),
        phase="checkpoint",
        cost_ns=round(mean_ns),
        time_ns={"checkpoint": rank.breakdown.mean_ns("checkpoint"), "other": round(beside.mean_ns)},
        cost_ratio=cost_ratio,
        # Saving less often also removes the slower steps; an asynchronous copy still empties caches, so low excludes
        # them.
        saving=saving_of_removal(cost_ratio, sure_ratio=certainty * stopped_ratio),
        evidence={
            "checkpoints": round(seen),
            "steps_per_checkpoint": None if every is None else round(every, 1),
            "files_per_checkpoint": round(files, 1),
            "checkpoint_ns": round(each_ns),
            "slower_steps_after_ns": round(slower_ns / per_step) if per_step > 0 and slower_ns > 0 else None,
            "around_the_save_ns": round(beside.mean_ns / per_step) if per_step > 0 and beside.mean_ns > 0 else None,
        },
        where=places(rank.lines.get("checkpoint_ns", ())),
        fix=Fix(technique="async-checkpoint"),
    )


def _files_per_checkpoint(saves: Sequence[float]) -> float:
    """Files per checkpoint: model, optimizers, schedulers and random states are often saved to separate files."""
    writing = [count for count in saves if count > 0]
    return max(1.0, sum(writing) / len(writing)) if writing else 1.0
