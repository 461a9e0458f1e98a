"""A link, gradients and the backward to overlap with -> what each way to send them leaves exposed, and the best way.

The timeline is DDP's: buckets become ready during backward, in order and in proportion to their bytes; each is
compressed where backward runs and then sent, one after the other. Whatever is not sent when backward ends is exposed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .findings import Value
from .link_fit import LinkFit, bus_factor

FLOAT_BYTES = 4
LEAST_GAIN_RATIO = 0.1
"""Share of the step that a way must save over a milder one to be worth its effect on the numbers. A choice."""
TOPK_RATIO = 0.01
COST_NS_PER_ELEMENT: Mapping[str, float] = {
    "bf16": 1.7,
    "int8": 12.3,
    "topk": 3.7,
}
"""Extra CPU time of a way over plain DDP's, per element of the gradients: compressing, adding up and keeping state, one
thread. benchmarks/results/link_choice/costs.json has the measurement."""
BUCKET_MIB = (1, 5, 10, 25, 50, 100, 200)
DEFAULT_BUCKET_MIB = 25
"""torch's own size; its first bucket, of 1 MiB, is ignored here."""
SAFE_WAYS = ("none", "bf16", "int8")
"""The ways that may be chosen: a small language model reached plain DDP's loss with them after 2,000 steps
(docs/communication-quality.md). The others are forecast, and left to users who watch the loss of a longer run: they
keep the loss only with another momentum or after a warm-up, if at all."""
DEVICE_WAYS = ("none", "bf16")
"""On an accelerator, the cost of the others was never measured, so they are not forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The gradients of one step of DistributedDataParallel. Times in ns per step."""

    bucket_bytes: Sequence[int]
    """float32 gradients, in the order in which they are sent."""
    backward_ns: float
    """Computation of backward that sending can overlap with."""
    step_ns: float
    """The full step as it is sent now."""
    ranks: int
    on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WayForecast:
    """One way to send gradients. ``technique`` is None for DDP's own."""

    way: str
    technique: str | None
    settings: Mapping[str, Value] = field(default_factory=dict)
    exposed_ns: float
    """Per step, including the time to compress."""
    sent_bytes: float
    """By each rank per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayChoice:
    """The best way, of SAFE_WAYS; ``picked`` is ``none`` if every other way would lose time."""

    picked: WayForecast
    ways: tuple[WayForecast, ...]

    @property
    def now(self) -> WayForecast:
        """DDP's own way."""
        return self.ways[0]


def forecast_ways(exchange: Exchange, link: LinkFit, techniques: Collection[str]) -> tuple[WayForecast, ...]:
    """Every way that the known ``techniques`` offer, mildest first; ``none`` always comes first."""
    compress = "compress-gradients"
    ways: list[tuple[str, str | None, dict[str, Value]]] = [("none", None, {})]
    if compress in techniques:
        ways += [(method, compress, {"method": method}) for method in ("bf16", "int8")]
        ways.append(("topk", compress, {"method": "topk", "ratio": TOPK_RATIO}))
    return tuple(
        _forecast(exchange, link, way, technique, settings)
        for way, technique, settings in ways
        if not exchange.on_device or way in DEVICE_WAYS
    )


def choose_way(exchange: Exchange, link: LinkFit, techniques: Collection[str]) -> WayChoice:
    """The mildest of SAFE_WAYS that no other way beats by LEAST_GAIN_RATIO of the step.

    >>> exchange = Exchange(bucket_bytes=[25 << 20] * 4, backward_ns=1e9, step_ns=2e9, ranks=2)
    >>> for rate in (1e9, 1.2e7):
    ...     link = LinkFit(latency_ns=3e5, bytes_per_s=rate)
    ...     print(choose_way(exchange, link, ["compress-gradients"]).picked.way)
    none
    int8
    """
    ways = forecast_ways(exchange, link, techniques)
    picked = ways[0]
    for way in ways[1:]:
        if way.way in SAFE_WAYS and way.exposed_ns < picked.exposed_ns - LEAST_GAIN_RATIO * exchange.step_ns:
            picked = way
    return WayChoice(picked=picked, ways=ways)


def choose_bucket_bytes(exchange: Exchange, link: LinkFit) -> int:
    """The size of buckets that leaves the least exposed, of BUCKET_MIB; torch's 25 MiB unless another saves a percent.

    Small buckets cost their latencies, large ones wait for the end of backward: the best size grows with the square
    root of all bytes times latency times rate.

    >>> large = Exchange(bucket_bytes=[25 << 20] * 400, backward_ns=1e8, step_ns=5e8, ranks=8)
    >>> choose_bucket_bytes(large, LinkFit(latency_ns=4e4, bytes_per_s=1e11)) >> 20
    200
    """
    whole = sum(exchange.bucket_bytes)
    factor = bus_factor("all-reduce", exchange.ranks)

    def exposed_ns(cap_mib: int) -> float:
        cap = cap_mib << 20
        sizes = [min(cap, whole - start) for start in range(0, whole, cap)]
        return _exposed_ns(replace(exchange, bucket_bytes=sizes), [(0.0, link.time_ns(factor * one)) for one in sizes])

    best = min(BUCKET_MIB, key=exposed_ns)
    gains = exposed_ns(DEFAULT_BUCKET_MIB) - exposed_ns(best) > 0.01 * exchange.step_ns
    return (best if gains else DEFAULT_BUCKET_MIB) << 20


def sent_ratio(way: str, exchange: Exchange) -> float:
    """Bytes that a rank sends by this way, over those of plain DDP's ring.

    top-k gathers, so every rank's share goes to all others: ``ranks * ratio`` if values and indices have 4 bytes each.
    """
    if way in ("bf16", "int8"):
        return 0.5 if way == "bf16" else 0.25
    return exchange.ranks * TOPK_RATIO if way == "topk" else 1.0


def _forecast(
    exchange: Exchange, link: LinkFit, way: str, technique: str | None, settings: Mapping[str, Value]
) -> WayForecast:
    ratio = sent_ratio(way, exchange)
    factor = bus_factor("all-reduce", exchange.ranks)
    cost = 0.0 if exchange.on_device else COST_NS_PER_ELEMENT.get(way, 0.0) / FLOAT_BYTES
    sent_bytes = ratio * factor * sum(exchange.bucket_bytes)
    messages = 2 if way == "int8" else 1
    plans = [
        (cost * size, link.latency_ns * (messages - 1) + link.time_ns(ratio * factor * size))
        for size in exchange.bucket_bytes
    ]
    exposed_ns = _exposed_ns(exchange, plans)
    return WayForecast(way=way, technique=technique, settings=settings, exposed_ns=exposed_ns, sent_bytes=sent_bytes)


def _exposed_ns(exchange: Exchange, plans: Sequence[tuple[float, float]]) -> float:
    """End of the last bucket after backward's computation, if each has a time to compress and a time on the wire."""
    whole = max(1, sum(exchange.bucket_bytes))
    spent_ns = free_ns = passed_bytes = 0.0
    for size, (compress_ns, wire_ns) in zip(exchange.bucket_bytes, plans, strict=True):
        passed_bytes += size
        spent_ns += compress_ns
        ready_ns = exchange.backward_ns * passed_bytes / whole + spent_ns
        free_ns = max(free_ns, ready_ns) + wire_ns
    return max(free_ns, exchange.backward_ns + spent_ns) - exchange.backward_ns
