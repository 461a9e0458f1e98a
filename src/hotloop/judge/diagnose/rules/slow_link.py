"""Analysis -> slow-link: gradients wait for a link that is far slower than it should be, or than ranks need."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Skipped, saving_of_removal, saving_within
from hotloop.core.link_choice import WayChoice
from hotloop.core.rules import rule
from hotloop.judge.diagnose.comm import (
    choose_sending,
    exposure_by_cause,
    is_distributed,
    list_exposed,
    saved_ratio,
    slow_link,
)
from hotloop.judge.diagnose.measured import is_material, known_places

REACHED_RATIO = 0.5
"""Part of its nominal speed that a repaired link reaches. A range factor; the only measured saving in the known set
(ddp_widemlp, benchmarks/results/zoo/55f64a285295.jsonl, 2026-11-22) was 0.54, where nine tenths of this factor
predicted 0.54."""
FEWER = "fewer-synchronisations"
FEWER_SAVING = (0.0, 0.15, 0.6)
"""Rule of thumb: low, expected and high part of the exchange that less frequent synchronization saves; how much less
frequent is the user's choice."""


@rule("slow-link", "the link between the ranks is slow", ablation="skip-exchange")
def judge_slow_link(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Finds runs in which all ranks wait for gradients that cross a real network interface far below its nominal speed, or
    more slowly than two processes on one host exchange them.

    ## Why it costs
    In a ring, each rank sends and receives nearly twice the total size of the gradients per exchange. If the exchange
    takes longer than backward, every rank waits for it to finish.

    ## How to recognize it
    Exposed communication is similar on all ranks, the interface's counters show as many bytes as the gradients have,
    and these bytes divided by the communication time give the rate. Loopback traffic never counts as a link.

    ## What to do
    Far below the nominal speed: check which interface is used (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`) and whether
    InfiniBand is off (`NCCL_IB_DISABLE`), and look for errors and shared traffic; `hotloop bench comm` measures the
    link by itself. If the link reaches its nominal speed, or if that speed is unknown, send less data. The finding
    recommends 16 or 8 bits, whichever leaves less communication exposed; 8 bits must save another tenth of the step.
    The evidence includes a forecast for top-k, but the rule does not recommend top-k: with a small language model, it
    reached the same loss only without the optimizer's momentum (docs/communication-quality.md). Gradient accumulation
    with `no_sync()` helps in addition to any of these.

    ## When it is wrong
    The link's rate is the rate seen in this run; congestion that builds up over seconds is not seen. Compression costs
    computation: on a fast link, compression is slower, and this finding does not recommend it. The cost of compression
    was measured on one CPU. Every kind of compression rounds gradients: compare the loss of a longer run.
    """
    if not is_distributed(analysis):
        return None
    if len(analysis.ranks) < 2:
        return Skipped(reason="only one of the ranks was recorded")
    rank = analysis.lead
    exposure = exposure_by_cause(analysis)
    if rank.ddp is None or rank.ddp.comm_ns is None or exposure is None:
        return Skipped(reason="DDP reported no communication statistics")
    if not any(r.network_bytes_per_s for r in analysis.ranks):
        return Skipped(reason="no network counters were recorded")
    link = slow_link(analysis)
    if link is None:
        return None
    cost_ratio = min(1.0, exposure.link_ns / analysis.step_ns)
    if not is_material(analysis, cost_ratio, own_fields=("backward_ns", "communication_ns")):
        return None
    # Half the bytes take half the time, and what overlaps with backward continues to overlap.
    halved = min(exposure.link_ns, link.comm_ns / 2) / analysis.step_ns
    choice = choose_sending(analysis, link)
    sent = halved if choice is None else saved_ratio(analysis, choice, exposure.link_ns)
    fix, saving = _prescribe(choice), saving_of_removal(cost_ratio, sent)
    if fix.technique == FEWER:
        low, mid, high = (part * cost_ratio for part in FEWER_SAVING)
        saving = saving_within(cost_ratio, low, mid, high, Basis.RULE_OF_THUMB)
    if link.below_nominal:
        target = REACHED_RATIO * (link.nominal_bytes_per_s or 0.0)
        repaired = min(exposure.link_ns, link.comm_ns * (1.0 - link.rate_bytes_per_s / target)) / analysis.step_ns
        fix = Fix(technique="repair-link", settings={"interface": link.interface})
        saving = saving_of_removal(cost_ratio, max(halved, repaired), halved)
    return Finding(
        title=f"gradients cross {link.interface} at {link.rate_bytes_per_s / 1e6:.3g} MB/s, and all ranks wait",
        phase="backward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        time_ns={"backward": round(cost_ratio * analysis.step_ns)},
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "interface": link.interface,
            "rate_bytes_per_s": round(link.rate_bytes_per_s),
            "nominal_bytes_per_s": None if link.nominal_bytes_per_s is None else round(link.nominal_bytes_per_s),
            "comm_ns_per_step": round(link.comm_ns),
            "exposed_ns_per_step": round(exposure.link_ns),
            "parameter_bytes": rank.ddp.parameter_bytes,
            "saving_with_half_the_bytes_ratio": round(halved, 4),
            **({} if choice is None else list_exposed(analysis, choice)),
        },
        where=known_places(rank.ddp.where),
        fix=fix,
        ranks=tuple(r.rank for r in analysis.ranks if r.rank is not None),
    )


def _prescribe(choice: WayChoice | None) -> Fix:
    """The chosen way to send; bf16 if too little is known to choose, fewer exchanges if no way would save time."""
    if choice is None:
        return Fix(technique="compress-gradients", settings={"method": "bf16"})
    if choice.picked.technique is None:
        return Fix(technique=FEWER)
    return Fix(technique=choice.picked.technique, settings=choice.picked.settings)
