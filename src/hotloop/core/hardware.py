"""A device, its links and its price, as a plan knows them. Values only; the files are in plan/hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hotloop.core.link_fit import LinkFit


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one device for one hour, as stated on a provider's page on that day."""

    usd_per_hour: float
    provider: str
    day: str
    """YYYY-MM-DD."""
    kind: str = "on-demand"
    """on-demand | spot | reserved"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of device and the nodes it is rented in.

    ``peak_flops``: dense operations per second by dtype ("fp32", "tf32", "bf16", "fp16", "fp8"), from the vendor's data
    sheet.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops: Mapping[str, float]
    gpus_per_node: int
    inside: LinkFit
    """Between devices of one node, in a ring over all of them."""
    between: LinkFit
    """Between nodes, of one device's share."""
    host_bytes_per_s: float
    """From and to the host's memory, one direction."""
    context_bytes: int = 0
    """Memory that a process holds on the device before it allocates anything: driver, kernels, libraries."""
    power_watt: float | None = None
    prices: tuple[Price, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Key -> where its figure was read, and when."""

    def peak(self, precision: str) -> float:
        """Dense operations per second in this precision of a run; KeyError if the device does not have it."""
        dtype = {"pure-bf16": "bf16", "fp32": "tf32" if "tf32" in self.peak_flops else "fp32"}.get(precision, precision)
        return self.peak_flops[dtype]
