"""oversubscription: more compute threads than cores."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, Forecast, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Skipped, Value, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.loading import main_loader
from hotloop.judge.diagnose.measured import describe_probed, evidence_of

HARMLESS_RATIO = 0.005
"""If the measured gain is below this, the extra threads do no harm here."""

CLEAR_GAIN_RATIO = 0.2
"""Above this share of the operators' time, the two settings that took turns differ by more than their spread."""

FEWEST_ROUNDS_COUNT = 3

UNPROVED_LOW_RATIO = 0.02
UNPROVED_MID_RATIO = 0.10
UNPROVED_HIGH_RATIO = 0.50
"""Rule of thumb: the saving for twice as many threads as cores, if no probe timed them."""


@rule("oversubscription", "more compute threads than cores")
def oversubscription(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Compares the number of compute threads of all ranks on a host with the number of cores that they may use (the CPU
    affinity or the container's quota, whichever is smaller).

    ## Why it costs
    The threads of a parallel operator meet at a barrier. With more threads than cores, some wait for a core while the
    others spin at the barrier: every operator takes as long as its unluckiest thread.

    ## How to recognize it
    `torch.get_num_threads()` times the ranks on the host exceeds the cores. A probe with one thread per free core
    measures how much time the extra threads cost this model; without the probe, the cost is unknown.

    ## What to do
    Call `torch.set_num_threads(cores // ranks)`, or set OMP_NUM_THREADS in the environment. In a container, check that
    the quota is what you ordered.

    ## When it is wrong
    Training on an accelerator hardly uses the CPU's compute threads, so their number does not matter. Threads beyond
    the cores are harmless while they sleep.
    """
    lead = analysis.lead
    threads, cores = lead.torch_threads, lead.cores
    if threads is None or cores is None:
        return Skipped(reason="the number of threads or of cores is unknown")
    same_host = [rank for rank in analysis.ranks if rank.host == lead.host]
    ranks = max(lead.local_world_size or 1, len(same_host))
    total = threads * ranks
    if total <= cores:
        return None
    loader = main_loader(lead)
    workers = ((loader.num_workers or 0) if loader else 0) * ranks
    wanted = max(1, cores // ranks)
    probed = lead.forecasts.get("thread-count")
    if probed is not None and probed.saving_mid_ratio < HARMLESS_RATIO:
        return None
    settings: dict[str, Value] = {"torch_threads": wanted}
    if probed is not None:
        settings = dict(probed.settings) or settings
        saving = saving_within(
            1.0, _proved_low_ratio(probed, lead), probed.saving_mid_ratio, probed.saving_high_ratio, probed.basis
        )
    elif analysis.accelerator:
        saving = None
    else:
        excess = min(1.0, total / cores - 1.0)
        saving = saving_within(
            1.0,
            UNPROVED_LOW_RATIO * excess,
            UNPROVED_MID_RATIO * excess,
            UNPROVED_HIGH_RATIO * excess,
            Basis.RULE_OF_THUMB,
        )
    cost_ratio = None if saving is None or probed is None else saving.high_ratio
    across = f" of {ranks} ranks" if ranks > 1 else ""
    measured = (
        f"; {wanted} per process {describe_probed(probed, saving.mid_ratio, 'were')}" if probed and saving else ""
    )
    return Finding(
        title=f"{total} compute threads{across} share {cores} core{'s' * (cores != 1)}{measured}",
        cost_ns=None if cost_ratio is None else round(cost_ratio * lead.step_mean_ns),
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "torch_threads": threads,
            "ranks_on_host": ranks,
            "loader_workers": workers,
            "cores": cores,
            **({} if probed is None else evidence_of(probed)),
        },
        fix=Fix(technique="thread-count", settings=settings),
    )


def _proved_low_ratio(probed: Forecast, rank: RankAnalysis) -> float:
    """Half of the middle forecast, if the settings took turns on most of the step's work and clearly differed.

    The probe's own low end also includes the noise of the run. More threads than cores make that noise large, so it is
    part of the fault and not a reason to doubt it.
    """
    present, fitting = probed.evidence.get("present_ns"), probed.evidence.get("with_as_many_as_cores_ns")
    rounds = probed.evidence.get("rounds")
    if not present or fitting is None or rounds is None or rounds < FEWEST_ROUNDS_COUNT:
        return probed.saving_low_ratio
    train_ns = rank.mean.get("forward_ns", 0.0) + rank.mean.get("backward_ns", 0.0)
    if present < 0.5 * train_ns or 1.0 - fitting / present < CLEAR_GAIN_RATIO:
        return probed.saving_low_ratio
    return max(probed.saving_low_ratio, probed.saving_mid_ratio / 2)
