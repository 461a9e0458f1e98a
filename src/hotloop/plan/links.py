"""Times of collectives over a group of devices: latency and bandwidth, inside a node and between nodes.

Ring formulas as in NCCL (nccl-tests, doc/PERFORMANCE.md): of a message of S bytes a rank sends 2 (n-1)/n S in an
all-reduce and (n-1)/n S in an all-gather or reduce-scatter. A ring over several nodes runs at the slower of the link
inside and what all its ranks of a node send between nodes together; every further node adds a hop, of which an
all-reduce by a tree takes only log2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from hotloop.core.hardware import Hardware
from hotloop.core.link_fit import bus_factor


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that communicate: how many, and how many of them share a node."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.per_node)


def group(ranks: int, stride: int, gpus_per_node: int) -> Group:
    """``ranks`` devices, each ``stride`` after the one before, where devices are numbered node by node."""
    return Group(ranks, max(1, min(ranks, gpus_per_node // stride)))


def collective_ns(
    kind: str, message_bytes: float, members: Group, hardware: Hardware, *, inside_ratio: float, between_ratio: float
) -> float:
    """Time of one collective without its hops between nodes; 0 for one rank. Bytes as ``bus_factor`` counts them."""
    ranks = members.ranks
    if ranks < 2:
        return 0.0
    rounds = 2 if kind == "all-reduce" else 1
    # A ring over fewer devices has fewer hops; half of the latency is the launch.
    share = 0.5 + 0.5 * min(1.0, (members.per_node - 1) / max(1, hardware.gpus_per_node - 1))
    rate = hardware.inside.bytes_per_s * inside_ratio
    if members.nodes > 1:
        node_rate = members.per_node * hardware.between.bytes_per_s * between_ratio
        rate = min(rate, node_rate) if members.per_node > 1 else node_rate
    wire_bytes = message_bytes * bus_factor(kind, ranks)
    return hardware.inside.latency_ns * share * rounds / 2 + wire_bytes / rate * 1e9


def hops_ns(kind: str, members: Group, hardware: Hardware, hop_ratio: float) -> float:
    """Time until the first bytes have gone round all nodes: a ring's hops, or of an all-reduce a tree's."""
    nodes = members.nodes
    if nodes < 2:
        return 0.0
    hops = min(2 * log2(nodes), 2.0 * (nodes - 1)) if kind == "all-reduce" else nodes - 1
    return hops * hardware.between.latency_ns * hop_ratio
