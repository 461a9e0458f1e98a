"""Analysis -> how the gradients are best sent over the link that they cross, and in buckets of what size."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Value
from hotloop.core.link_choice import Exchange, WayChoice, choose_bucket_bytes, choose_way
from hotloop.core.link_fit import LinkFit
from hotloop.diagnose.comm import Link, bucket_bytes, bucket_latency_ns, exposure_by_cause, extra_syncs, sync_count
from hotloop.diagnose.lines import EXCHANGING, NOTHING, FieldShare, time_between_phases

SENDERS = ("compress-gradients",)
"""The techniques whose ways of sending are forecast."""
LEAST_WIRE_RATIO = 0.5
"""At least so much of the communication is taken for bytes on the wire, whatever its messages' usual latencies add to:
a slow link is one whose latencies are less (``slow_link``)."""

COLLECTIVE_CALL = re.compile(r"reduce|gather|broadcast|scatter|barrier|all_to_all|\bwait\(")
"""In a source line: it calls a collective itself, or waits for one."""


def applied_sender(rank: RankAnalysis) -> str | None:
    """The applied technique that exchanges DDP's gradients in its place; None where DDP does it itself."""
    return next((one for one in SENDERS if one in rank.applied and rank.ddp is not None), None)


def sender_ns(rank: RankAnalysis, explicit_ns: float) -> float:
    """The part of the time in collectives called from Python that is the applied sender's; 0.0 without one.

    Its collectives are reached from lines such as ``loss.backward()``; the training's own stand at a line that calls
    one.
    """
    if applied_sender(rank) is None:
        return 0.0
    lines = rank.lines.get("communication_ns", ())
    own_ratio = sum(line.share_ratio for line in lines if COLLECTIVE_CALL.search(line.text))
    return max(0.0, 1.0 - own_ratio) * explicit_ns


def loops_around_collectives(analysis: Analysis) -> FieldShare:
    """What the training does to its tensors around collectives of its own, per step, and DDP would do in their place.

    Nothing where most of the exchange is DDP's, an applied technique's, or that of sharded weights.
    """
    rank = analysis.lead
    exposure = exposure_by_cause(analysis) if len(analysis.ranks) > 1 else None
    if exposure is None or rank.model_is_sharded is True:
        return NOTHING
    sent_ns = sender_ns(rank, exposure.explicit_ns)
    if exposure.explicit_ns - sent_ns < exposure.rest_ns + sent_ns:
        return NOTHING
    return time_between_phases(rank, EXCHANGING)


def read_exchange(analysis: Analysis) -> Exchange | None:
    """One synchronised backward of the lead rank; None without DDP's sizes and times."""
    rank = analysis.lead
    ddp = rank.ddp
    sizes = () if ddp is None else bucket_bytes(ddp)
    if ddp is None or not sizes or ddp.backward_compute_ns is None:
        return None
    return Exchange(
        bucket_bytes=sizes,
        backward_ns=ddp.backward_compute_ns,
        step_ns=analysis.step_ns / sync_count(rank),
        ranks=rank.world_size,
        on_device=rank.device_type != "cpu",
    )


def fit_of(analysis: Analysis, link: Link) -> LinkFit | None:
    """The link as one training shows it: the backend's usual latency, and the rate of what is left of the time."""
    ddp = analysis.lead.ddp
    if ddp is None:
        return None
    wire_ns = max(LEAST_WIRE_RATIO * link.comm_ns, link.comm_ns - link.latency_ns)
    return LinkFit(latency_ns=bucket_latency_ns(ddp), bytes_per_s=link.rate_bytes_per_s * link.comm_ns / wire_ns)


def choose_sending(analysis: Analysis, link: Link) -> WayChoice | None:
    """How to send one exchange; None where too little of it is known. Times are per synchronised backward."""
    exchange, fit = read_exchange(analysis), fit_of(analysis, link)
    if exchange is None or fit is None or exchange.ranks < 2:
        return None
    return choose_way(exchange, fit, SENDERS)


def saved_ratio(analysis: Analysis, choice: WayChoice, exposed_ns: float) -> float:
    """Share of the step that the chosen way saves of ``exposed_ns``, what is exposed per step now."""
    syncs = max(1.0, sync_count(analysis.lead) - extra_syncs(analysis))
    return max(0.0, exposed_ns - choice.picked.exposed_ns * syncs) / analysis.step_ns


def list_exposed(analysis: Analysis, choice: WayChoice) -> dict[str, Value]:
    """Evidence: what each way would leave exposed, as a share of the step."""
    syncs = max(1.0, sync_count(analysis.lead) - extra_syncs(analysis))
    left: Mapping[str, Value] = {way.way: round(way.exposed_ns * syncs / analysis.step_ns, 4) for way in choice.ways}
    return {"exposed_by_way": dict(left)}


def bucket_cap_mib(analysis: Analysis, link: Link | None) -> int:
    """The size of DDP's buckets for this link; torch's 25 MiB where none is crossed."""
    exchange = read_exchange(analysis)
    fit = None if link is None else fit_of(analysis, link)
    return 25 if exchange is None or fit is None else choose_bucket_bytes(exchange, fit) >> 20
