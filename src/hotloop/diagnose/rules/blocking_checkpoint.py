"""blocking-checkpoint: the loop waits while a checkpoint is written."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, saving_within
from hotloop.core.rules import rule
from hotloop.diagnose.checkpoints import saving_rank
from hotloop.diagnose.lines import places, time_beside_checkpoints
from hotloop.diagnose.measured import known_count
from hotloop.diagnose.noise import steps_between
from hotloop.diagnose.wording import say_every, say_share, say_time


@rule("blocking-checkpoint", "the loop waits while a checkpoint is written")
def blocking_checkpoint(analysis: Analysis) -> Finding | None:
    """## What it does
    Measures the time in `torch.save` and its kin during the training steps.

    ## Why it costs
    A plain save copies the state to the host, serialises it and writes it to storage while nothing trains. With
    several ranks the others wait for the one that saves.

    ## How to tell
    The phase `checkpoint` is a material part of the run: how long a save takes, and how often it happens, are named.

    ## What to do
    Save asynchronously: copy the state to pinned or shared memory inside the step, and write it from a thread or a
    process (`torch.distributed.checkpoint.async_save`). Or save less often: the sensible interval follows from the
    time that a save takes and from how often the machine fails.

    ## When it is wrong
    The last checkpoint of a run, or the only one, says little about a longer run. Small models on fast disks save in
    less time than an asynchronous copy takes to set up. Asynchronous saving needs memory for one more copy of the
    state, and its writer competes for the cores.
    """
    rank = saving_rank(analysis)
    if rank is None:
        return None
    written_ratio = min(1.0, rank.breakdown.share("checkpoint"))
    beside = time_beside_checkpoints(rank)
    mean_ns = float(rank.breakdown.mean_ns("checkpoint")) + beside.mean_ns
    cost_ratio = min(1.0, mean_ns / rank.step_mean_ns) if beside.mean_ns > 0 else written_ratio
    files = _files_per_checkpoint(rank.columns["checkpoints"])
    per_step = known_count(rank, "checkpoints") / files
    seen = per_step * rank.steady_count
    each_ns = mean_ns / per_step if per_step > 0 else mean_ns
    # n saves tell how often saves happen to within about 1/n; one alone says little about a longer run.
    certainty = seen / (seen + 1.0) if seen > 0 else 0.5
    every = steps_between(rank.columns["checkpoints"]) or (1.0 / per_step if per_step > 0 else None)
    return Finding(
        rule="blocking-checkpoint",
        kind=Kind.FAULT,
        title=f"writing a checkpoint stops the loop for {say_time(each_ns)} "
        f"{say_every(every) if every else ''}: {say_share(cost_ratio)} of the run",
        phase="checkpoint",
        cost_ns=round(mean_ns),
        cost_ratio=cost_ratio,
        # What stays in the step is the copy of the state, a tenth to a quarter of a save; the writer takes cores too.
        saving=saving_within(
            cost_ratio, 0.6 * certainty * cost_ratio, 0.85 * cost_ratio, 0.95 * cost_ratio, Basis.SIMULATED
        ),
        evidence={
            "checkpoints": round(seen),
            "steps_per_checkpoint": None if every is None else round(every, 1),
            "files_per_checkpoint": round(files, 1),
            "checkpoint_ns": round(each_ns),
            "around_the_save_ns": round(beside.mean_ns / per_step) if per_step > 0 and beside.mean_ns > 0 else None,
        },
        where=places(rank.lines.get("checkpoint_ns", ())),
        fix=Fix(technique="async-checkpoint", settings={}, safety=Safety.ASK, numerics=Numerics.EXACT),
        unit=analysis.unit,
    )


def _files_per_checkpoint(saves: Sequence[float]) -> float:
    """Files that one checkpoint writes: model, optimizers, schedulers and random states are often saved one by one."""
    writing = [count for count in saves if count > 0]
    return max(1.0, sum(writing) / len(writing)) if writing else 1.0
