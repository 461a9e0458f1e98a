"""Analysis -> what the ranks' communication costs, and the best way to send the gradients.

All-reduce makes the ranks' steps equally long, so a slow rank does not show in its step time. It shows in the waiting:
every rank's exposed communication is transfer plus waiting for the last rank, and the rank that waits least is the
last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hotloop.core.analysis import Analysis, DdpFacts, RankAnalysis
from hotloop.core.findings import REMOVED_LOW_RATIO, Value
from hotloop.core.link_choice import Exchange, WayChoice, choose_bucket_bytes, choose_way
from hotloop.core.link_fit import LinkFit, usual_latency_ns
from hotloop.judge.diagnose.lines import EXCHANGING, NOTHING, FieldShare, time_between_phases
from hotloop.judge.diagnose.measured import known_mean, steps_per_anchor_step

LOOPBACK = ("lo", "lo0")
LOOPBACK_BYTES_PER_S = 1.0e9
"""The rate that gloo reaches between two processes of one host (measured: 6.8 Gb/s on an unshaped virtual link)."""
OTHER_LINKS_RATIO = 10.0
"""Rule of thumb: the rate of an accelerator's links, over loopback. A saving that rests on it is labeled so."""
SLOW_LINK_RATIO = 0.3
"""A link below this share of its nominal speed, or of what loopback reaches, is slow."""
COUNTED_RATIO = 0.9
"""The cost of an extra synchronization in a CPU's step, over the communication that DDP counts for it: the low end of
0.90 to 1.0 (``sync_saving_ns`` describes the measurement)."""
DEFAULT_BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
SMALL_BUCKET_BYTES = 1 << 20
FEWEST_SMALL_BUCKETS = 8
SENDERS = ("compress-gradients",)
"""The techniques whose ways of sending are forecast."""
LEAST_WIRE_RATIO = 0.5
"""At least this part of the communication is assumed to be bytes on the wire, whatever the usual latencies of its
messages add up to: a slow link has smaller latencies (``slow_link``)."""
COLLECTIVE_CALL = re.compile(r"reduce|gather|broadcast|scatter|barrier|all_to_all|\bwait\(")
"""A source line that calls a collective itself, or waits for one."""


def is_distributed(analysis: Analysis) -> bool:
    """Whether the training ran in more than one communicating process."""
    return analysis.lead.world_size > 1


def sync_count(rank: RankAnalysis) -> float:
    """Synchronized backwards per step of one rank."""
    synced = known_mean(rank, "synced_backwards")
    if synced is not None and synced > 0:
        return synced
    return max(1.0, known_mean(rank, "backwards") or 1.0)


def exposed_gradient_ns(rank: RankAnalysis) -> float | None:
    """Exposed gradient communication per step of one rank; None without DDP's statistics."""
    if rank.ddp is None or rank.ddp.exposed_comm_ns is None:
        return None
    exposed_ns = rank.ddp.exposed_comm_ns * sync_count(rank)
    return min(exposed_ns, rank.mean.get("backward_ns", exposed_ns))


def explicit_ns(rank: RankAnalysis) -> float:
    """Collectives that the training's own code calls, per step of one rank."""
    return max(0.0, rank.mean.get("communication_ns", 0.0))


def waits_ns(analysis: Analysis) -> list[float]:
    """Time that each rank waits for others, ns per step: exposed gradient communication and its own code's collectives.

    Without DDP's statistics, and if waiting cannot be separated from work, all of backward replaces the former.
    """
    exposed = [exposed_gradient_ns(rank) for rank in analysis.ranks]
    if all(shows_exchange_of_backward(rank) for rank in analysis.ranks):
        exposed = [0.0 for _ in analysis.ranks]
    elif None in exposed:
        exposed = [rank.mean.get("backward_ns", 0.0) for rank in analysis.ranks]
    return [(one or 0.0) + explicit_ns(rank) for one, rank in zip(exposed, analysis.ranks, strict=True)]


def shows_exchange_of_backward(rank: RankAnalysis) -> bool:
    """Whether backward's waiting for other ranks can be separated from its computation without DDP's statistics.

    FSDP2 calls its collectives from Python. On the CPU they run on the thread that trains, in backward too, so they are
    ``communication_ns`` and the rest of backward is work. On an accelerator, other threads and streams run them.
    """
    return rank.ddp is None and rank.model_is_sharded is True and rank.device_type == "cpu" and explicit_ns(rank) > 0


def least_exposed_gradient_ns(analysis: Analysis) -> float | None:
    """Exposed gradient communication per step of the rank that has the least of it."""
    known = [e for e in (exposed_gradient_ns(rank) for rank in analysis.ranks) if e is not None]
    return min(known) if len(known) == len(analysis.ranks) else None


def least_explicit_ns(analysis: Analysis) -> float:
    """Time per step in the training's own collectives, on the rank that spends the least."""
    return min(explicit_ns(rank) for rank in analysis.ranks)


def extra_syncs(analysis: Analysis) -> float:
    """Gradient synchronizations per step beyond the one that is needed; 0 if there are none or it is unknown."""
    rank = analysis.lead
    synced = known_mean(rank, "synced_backwards")
    backwards = known_mean(rank, "backwards")
    if synced is None or backwards is None or synced < backwards - 0.05:
        return 0.0
    # A model of several DDP modules requests an exchange in the forward of each; one backward performs a single
    # exchange.
    per_optimizer_step = min(synced, backwards) / steps_per_anchor_step(rank)
    if per_optimizer_step < 1.5:
        return 0.0
    return (per_optimizer_step - 1.0) * steps_per_anchor_step(rank)


def sharded_extra_ns(analysis: Analysis) -> float:
    """Time of FSDP2's exchange per step beyond one micro-batch's, on the rank with the least of it, assuming that each
    takes the same; 0 if gradients are scattered once, and on an accelerator, where the exchange is not seen."""
    rank = analysis.lead
    if not rank.model_is_sharded or rank.device_type != "cpu":
        return 0.0
    return least_explicit_ns(analysis) * extra_syncs(analysis) / sync_count(rank)


def transfer_ns(ddp: DdpFacts, world_size: int) -> float | None:
    """Time of one exchange of all gradients on one host if no rank waits; None if their size is unknown.

    Bytes over the rate of gloo on loopback (an accelerator's links are far faster), plus a latency per bucket.
    """
    if not ddp.parameter_bytes or world_size < 2:
        return None
    rate = (
        LOOPBACK_BYTES_PER_S if (ddp.backend or "gloo").lower() == "gloo" else OTHER_LINKS_RATIO * LOOPBACK_BYTES_PER_S
    )
    payload_bytes = 2 * (world_size - 1) / world_size * ddp.parameter_bytes
    return payload_bytes / rate * 1e9 + usual_latency_ns(ddp.backend) * max(1, len(bucket_bytes(ddp)))


def sync_saving_ns(analysis: Analysis) -> tuple[float, float, float] | None:
    """Low, mid and high time per step that the extra synchronizations cost; None if communication is unknown.

    Exposed communication is transfer plus waiting for the other ranks. The transfer is saved for certain; part of the
    waiting comes back at the one synchronization that remains. On a CPU, the overlapped part counts as well: the
    transfer takes cores from the computation that it overlaps. Measured with two gloo ranks on two cores, 2, 4 and 8
    synchronizations per step, 3 to 5 interleaved pairs each: every extra one cost 5.1 to 6.2 ms where DDP counted 5.5
    to 6.8 ms of communication, 4.0 to 4.7 ms of it exposed (ratio 0.90 to 1.0).
    """
    extra = extra_syncs(analysis)
    facts = [r.ddp for r in analysis.ranks if r.ddp is not None]
    exposed = [ddp.exposed_comm_ns for ddp in facts if ddp.exposed_comm_ns is not None]
    comm = [ddp.comm_ns for ddp in facts if ddp.comm_ns is not None]
    if not extra or not exposed or not comm:
        return None
    mean_exposed = sum(exposed) / len(exposed)
    hidden = max(0.0, sum(comm) / len(comm) - mean_exposed) if analysis.lead.device_type == "cpu" else 0.0
    certain = transfer_ns(facts[0], analysis.lead.world_size)
    link = crossed_link(analysis)
    if link is not None:
        # The rank with the least communication waits for no other rank.
        certain = link.comm_ns / sync_count(analysis.lead)
    # Over a slow link, all of it is transfer.
    sure = min(exposed) if slow_link(analysis) is not None else min(min(exposed), certain or 0.0)
    low_ns, high_ns = REMOVED_LOW_RATIO * extra * sure, extra * (mean_exposed + hidden)
    mid_ns = COUNTED_RATIO * high_ns if analysis.lead.device_type == "cpu" else extra * (sure + mean_exposed) / 2
    return low_ns, mid_ns, high_ns


def bucket_bytes(ddp: DdpFacts) -> tuple[int, ...]:
    """Sizes of the buckets in use, or an even split by the cap if DDP did not report them; empty if unknown."""
    if ddp.bucket_sizes:
        return ddp.bucket_sizes
    if not ddp.parameter_bytes or not ddp.bucket_cap_bytes:
        return ()
    count = -(-ddp.parameter_bytes // ddp.bucket_cap_bytes)
    return (ddp.parameter_bytes // count,) * count


def needless_buckets(ddp: DdpFacts) -> int:
    """The number of all-reduces per synchronization beyond what buckets of the default size would need."""
    sizes = bucket_bytes(ddp)
    if len(sizes) < FEWEST_SMALL_BUCKETS:
        return 0
    small = sum(1 for size in sizes if size < SMALL_BUCKET_BYTES)
    if small < 0.75 * len(sizes):
        return 0
    needed = 2 + max(0, sum(sizes) - FIRST_BUCKET_BYTES) // DEFAULT_BUCKET_BYTES
    return max(0, len(sizes) - needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The performance of the link that gradients cross between ranks. Rates in bytes per second."""

    interface: str
    rate_bytes_per_s: float
    """Rate on the wire while gradients were in transit."""
    nominal_bytes_per_s: float | None
    latency_ns: float
    """Of all messages of a step, by rule of thumb."""
    comm_ns: float
    """Communication per step, overlapped or not, of the rank with the least of it."""
    overlap_ns: float

    @property
    def below_nominal(self) -> bool:
        """The interface could do much more than it did: another route, a shared or shaped link, a wrong setting."""
        nominal = self.nominal_bytes_per_s
        return nominal is not None and nominal > 0 and self.rate_bytes_per_s < SLOW_LINK_RATIO * nominal


def shares_its_cores(rank: RankAnalysis) -> bool:
    """Whether the ranks' threads fill the cores of one host, and gradients travel only through its memory."""
    if rank.device_type != "cpu" or rank.cores is None or rank.local_world_size != rank.world_size:
        return False
    if any(_carries_gradients(rank, name) for name in rank.network_bytes_per_s if name not in LOOPBACK):
        return False
    return rank.world_size * (rank.torch_threads or 1) >= rank.cores


def _carries_gradients(rank: RankAnalysis, interface: str) -> bool:
    """Whether the interface moves about as many bytes per step as the exchange of all gradients needs."""
    carried_bytes = rank.network_bytes_per_s[interface] * rank.step_mean_ns * 1e-9
    return carried_bytes >= 0.3 * _payload_bytes(rank) > 0


def _payload_bytes(rank: RankAnalysis) -> float:
    """Bytes that a ring sends and receives per step and rank for all gradients; 0 if their size is unknown."""
    n = rank.world_size
    return 2 * (n - 1) / n * ((rank.ddp.parameter_bytes if rank.ddp else 0) or 0) * sync_count(rank)


def crossed_link(analysis: Analysis) -> Link | None:
    """The real interface that gradients cross, fast or slow; None on one host, or if it is unknown."""
    stats = [r for r in analysis.ranks if r.ddp is not None and r.ddp.comm_ns and r.ddp.overlap_ns is not None]
    if len(stats) != len(analysis.ranks):
        return None
    rates = [(rate, name, rank) for rank in stats for name, rate in rank.network_bytes_per_s.items()]
    _, name, rank = max((one for one in rates if one[1] not in LOOPBACK), key=lambda one: one[0], default=(0, "", None))
    if rank is None or rank.ddp is None:
        return None
    syncs = sync_count(rank)
    # Waiting for a slow rank is not transfer: the rank that waits least shows how long the wire takes.
    comm_ns = min(r.ddp.comm_ns for r in stats if r.ddp is not None and r.ddp.comm_ns is not None) * syncs
    overlap_ns = min((r.ddp.overlap_ns or 0.0) for r in stats if r.ddp is not None) * syncs
    payload_bytes = _payload_bytes(rank)
    # The counter covers both directions or one; a ring sends and receives the same amount.
    if not _carries_gradients(rank, name) or comm_ns <= 0:
        return None
    return Link(
        interface=name,
        rate_bytes_per_s=payload_bytes / (comm_ns * 1e-9),
        nominal_bytes_per_s=rank.network_speed_bytes_per_s.get(name),
        latency_ns=usual_latency_ns(rank.ddp.backend) * max(1, len(bucket_bytes(rank.ddp))) * syncs,
        comm_ns=comm_ns,
        overlap_ns=overlap_ns,
    )


def slow_link(analysis: Analysis) -> Link | None:
    """The link, if gradients cross a real interface and wait for it; else None."""
    link = crossed_link(analysis)
    if link is None:
        return None
    if link.rate_bytes_per_s >= SLOW_LINK_RATIO * max(link.nominal_bytes_per_s or 0.0, LOOPBACK_BYTES_PER_S):
        return None
    # Buckets and start-up latency also lower the rate; a link is to blame only if the bytes are many.
    return None if link.latency_ns > 0.5 * link.comm_ns else link


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The least exposed communication per step (ns) of needed synchronizations, separated by cause."""

    link_ns: float
    buckets_ns: float
    explicit_ns: float
    rest_ns: float


def exposure_by_cause(analysis: Analysis) -> Exposure | None:
    """The reasons why even the rank that waits least waits: each ns goes to only one cause. None without DDP's
    statistics.

    Order: unneeded synchronizations, then the link, then small buckets; the rest has no known cause.
    """
    gradient_ns = least_exposed_gradient_ns(analysis)
    own_ns = least_explicit_ns(analysis)
    if gradient_ns is None:
        if own_ns <= 0:
            return None
        extra_ns = sharded_extra_ns(analysis)
        return Exposure(link_ns=0.0, buckets_ns=0.0, explicit_ns=own_ns - extra_ns, rest_ns=0.0)
    lead = analysis.lead
    extra = extra_syncs(analysis)
    left = gradient_ns - (gradient_ns * extra / sync_count(lead) if extra else 0.0)
    link = left if slow_link(analysis) is not None else 0.0
    left -= link
    needless = needless_buckets(lead.ddp) if lead.ddp is not None else 0
    buckets = 0.0
    if needless and lead.ddp is not None:
        syncs = max(1.0, sync_count(lead) - extra)
        probed = lead.forecasts.get("ddp-buckets")
        probed_ns = 0.0 if probed is None else probed.saving_mid_ratio * analysis.step_ns
        buckets = min(left, probed_ns or needless * usual_latency_ns(lead.ddp.backend) * syncs)
    return Exposure(
        link_ns=link,
        buckets_ns=buckets,
        explicit_ns=own_ns,
        rest_ns=left - buckets,
    )


def applied_sender(rank: RankAnalysis) -> str | None:
    """The applied technique that exchanges gradients in place of DDP; None if DDP does it itself."""
    return next((one for one in SENDERS if one in rank.applied and rank.ddp is not None), None)


def sender_ns(rank: RankAnalysis, explicit_ns: float) -> float:
    """The applied sender's part of the time in collectives called from Python; 0.0 without a sender.

    Its collectives are reached from lines such as ``loss.backward()``; those of the training are on a line that calls a
    collective.
    """
    if applied_sender(rank) is None:
        return 0.0
    lines = rank.lines.get("communication_ns", ())
    own_ratio = sum(line.share_ratio for line in lines if COLLECTIVE_CALL.search(line.text))
    return max(0.0, 1.0 - own_ratio) * explicit_ns


def loops_around_collectives(analysis: Analysis) -> FieldShare:
    """What the training does per step to its tensors around its own collectives, and DDP would do in their place.

    Nothing if most of the exchange is DDP's, an applied technique's, or that of sharded weights.
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
    """One synchronized backward of the lead rank; None without DDP's sizes and times."""
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
    """The link as this training shows it: the backend's usual latency, and a rate from the remaining time."""
    ddp = analysis.lead.ddp
    if ddp is None:
        return None
    wire_ns = max(LEAST_WIRE_RATIO * link.comm_ns, link.comm_ns - link.latency_ns)
    return LinkFit(latency_ns=usual_latency_ns(ddp.backend), bytes_per_s=link.rate_bytes_per_s * link.comm_ns / wire_ns)


def choose_sending(analysis: Analysis, link: Link) -> WayChoice | None:
    """How to send one exchange; None if too little of it is known. Times are per synchronized backward."""
    exchange, fit = read_exchange(analysis), fit_of(analysis, link)
    if exchange is None or fit is None or exchange.ranks < 2:
        return None
    return choose_way(exchange, fit, SENDERS)


def saved_ratio(analysis: Analysis, choice: WayChoice, exposed_ns: float) -> float:
    """Share of the step that the chosen way saves of ``exposed_ns``, the communication exposed per step now."""
    syncs = max(1.0, sync_count(analysis.lead) - extra_syncs(analysis))
    return max(0.0, exposed_ns - choice.picked.exposed_ns * syncs) / analysis.step_ns


def list_exposed(analysis: Analysis, choice: WayChoice) -> dict[str, Value]:
    """Evidence: the communication that each way would leave exposed, as a share of the step."""
    syncs = max(1.0, sync_count(analysis.lead) - extra_syncs(analysis))
    left: Mapping[str, Value] = {way.way: round(way.exposed_ns * syncs / analysis.step_ns, 4) for way in choice.ways}
    return {"exposed_by_way": dict(left)}


def bucket_cap_mib(analysis: Analysis, link: Link | None) -> int:
    """The size of DDP's buckets for this link; torch's 25 MiB if no link is crossed."""
    exchange = read_exchange(analysis)
    fit = None if link is None else fit_of(analysis, link)
    return 25 if exchange is None or fit is None else choose_bucket_bytes(exchange, fit) >> 20
