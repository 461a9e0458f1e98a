"""Times of collectives by size -> LinkFit: the cost before the first byte, and the rate of the bytes.

The bus factors are those of NCCL's own benchmark (NVIDIA/nccl-tests, doc/PERFORMANCE.md): the bytes that a rank moves
over its slowest link, as a part of the message, so that the bus bandwidth of all collectives compares with hardware's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")

USUAL_LATENCY_NS = {"gloo": 250_000.0, "nccl": 40_000.0}
"""The cost of one more all-reduce, however few bytes it carries. gloo: a lower bound; 500 all-reduces of 1 KiB between
two ranks took 0.61, 0.75 and 1.36 ms (quartiles; 2 shared cores, torch 2.13, 2026-11-22). nccl: rule of thumb."""


def usual_latency_ns(backend: str | None) -> float:
    """Latency of one small all-reduce by backend; gloo's if it is unknown."""
    return USUAL_LATENCY_NS.get((backend or "").lower(), USUAL_LATENCY_NS["gloo"])


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (message bytes over time).

    The message of all-gather and reduce-scatter is the complete message that a rank holds afterwards or before; for
    all-to-all, it is what a rank sends to all ranks, including itself.

    >>> bus_factor("all-reduce", 4), bus_factor("all-gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective is {collective!r}: choose one of {', '.join(COLLECTIVES)}")
    return {"all-reduce": 2.0, "broadcast": ranks / max(1, ranks - 1)}.get(collective, 1.0) * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """t = latency_ns + wire bytes / bytes_per_s, where the wire bytes are message bytes times the bus factor."""

    latency_ns: float
    """The cost of a message, however few bytes it carries."""
    bytes_per_s: float
    """Rate of what one rank sends."""
    error_ratio: float | None = None
    """Largest relative deviation of a measured time from the line; None if the line was not fitted to times."""
    error_bytes: float | None = None
    """Wire bytes of the message with that deviation."""

    def time_ns(self, wire_bytes: float) -> float:
        """Time of one message of which a rank sends this many bytes."""
        return self.latency_ns + wire_bytes / self.bytes_per_s * 1e9


def fit_link(points: Sequence[tuple[float, float]]) -> LinkFit | None:
    """The line through (wire bytes, ns): latency from the two smallest messages, rate from all, by least squares.

    The squares are of ns, not of relative errors, so that the large messages set the rate: what a link lets pass at
    once (a token bucket's burst, a socket's buffer) makes middle sizes faster than any line. None if there are fewer
    than two sizes, or the largest message takes no longer than the smallest.

    >>> fit = fit_link([(1e3, 101e3), (1e6, 1.1e6), (1e7, 10.1e6)])
    >>> round(fit.latency_ns), round(fit.bytes_per_s / 1e6), round(fit.error_ratio, 2)
    (100000, 1000, 0.0)
    """
    known = sorted((x, t) for x, t in points if x > 0 and t > 0)
    if len({x for x, _ in known}) < 2:
        return None
    # The smallest message has so few bytes that their time is lost in its noise.
    smallest = min(t for _, t in known[:2])
    slope_ns = sum(x * (t - smallest) for x, t in known) / sum(x * x for x, _ in known)
    if slope_ns <= 0:
        return None
    latency_ns = max(0.0, smallest - slope_ns * known[0][0])
    error, at = max((abs(latency_ns + slope_ns * x - t) / t, x) for x, t in known)
    return LinkFit(latency_ns=latency_ns, bytes_per_s=1e9 / slope_ns, error_ratio=error, error_bytes=at)


def format_byte_rate(bytes_per_s: float) -> str:
    """A rate in decimal units, as networks state theirs.

    >>> format_byte_rate(12.5e6)
    '12.5 MB/s'
    """
    for size, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= size:
            value = bytes_per_s / size
            return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
    return f"{bytes_per_s:.0f} B/s"
