"""Utilization: how much of the hardware a training used, why a part of it is unknown, and the targets that a user sets.

MFU is the rate of model FLOPs (nothing computed twice) over the peak of the hardware, HFU that of all FLOPs (PaLM,
arXiv:2204.02311, section 4.1). The other ratios are shares of time, and say nothing about how well that time was used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import UsageError, suggest_known

TARGETS = {
    "utilization": "utilization_ratio",
    "busy": "busy_ratio",
    "sm_active": "sm_active_ratio",
    "mfu": "mfu_ratio",
    "hfu": "hfu_ratio",
    "cpu_utilization": "cpu_utilization_ratio",
}
"""A name for ``--target`` -> the field of Utilization whose minimum it sets."""

TEXT = {
    "utilization_ratio": "GPU utilization",
    "busy_ratio": "device activity",
    "sm_active_ratio": "SM activity",
    "mfu_ratio": "MFU",
    "hfu_ratio": "HFU",
    "cpu_utilization_ratio": "CPU utilization",
}
LOW_RATIO, GOOD_RATIO = 0.5, 0.8
"""Bands of the usual tuning guides for a GPU: low below the first, good from the second on (they aim at 80 to 90 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Shares of the steady steps' time or of a peak rate, 0..1 (MFU and HFU may exceed 1 if the peak was measured).
    None if nothing measured it; ``unknown`` says why."""

    utilization_ratio: float | None = None
    """NVML's: share of the time in which at least one kernel ran, of any program, mean over the devices in use."""
    busy_ratio: float | None = None
    """Share of the window in which the device did anything, from a kernel timeline."""
    sm_active_ratio: float | None = None
    """Streaming multiprocessors with a resident warp, mean over all of them and over time: measured by NVML, or
    estimated from a kernel timeline as min(1, blocks per SM) of the kernels that ran, over the window."""
    cpu_utilization_ratio: float | None = None
    """CPU time of the training and its workers over the time of the cores that it may run on."""
    cpu_others_ratio: float | None = None
    """The same of other programs."""
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None
    flops_per_step: float | None = None
    """Model FLOPs of one step of one rank: matrix products, convolutions, recurrent layers and attention."""
    hardware_flops_per_step: float | None = None
    """Including what was computed twice."""
    peak_flops_per_s: float | None = None
    peak: str = ""
    """What the peak is of, and how it is known."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a ratio is None, by its field."""

    @property
    def device_ratio(self) -> float | None:
        """Share of the time in which the device worked: NVML's, else that of a kernel timeline."""
        return self.busy_ratio if self.utilization_ratio is None else self.utilization_ratio

    def reached(self, target: str) -> float | None:
        """The value of a target's measure; for 'utilization', a kernel timeline replaces NVML if it was not
        available."""
        if target == "utilization":
            return self.device_ratio
        value: float | None = getattr(self, TARGETS[target])
        return value


NOTHING = Utilization()


def mean_utilization(several: Sequence[Utilization], weights: Sequence[float] | None = None) -> Utilization:
    """Over several ranks (at least one): the mean of each ratio that all of them know; the rest is from the first rank.

    ``weights``: one per rank, such as the length of its window, so that shares of windows are shares of their sum.
    """
    if len(several) == 1:
        return several[0]
    found: dict[str, Any] = {}
    for name in TEXT:
        known = [value for one in several if (value := getattr(one, name)) is not None]
        each = weights or [1.0] * len(several)
        whole = sum(each) if len(known) == len(several) else 0.0
        found[name] = sum(value * weight for value, weight in zip(known, each, strict=False)) / whole if whole else None
    unknown = {name: reason for one in reversed(several) for name, reason in one.unknown.items()}
    return replace(several[0], **found, unknown=unknown)


def rate_over_peak(units_per_s: float, flops_per_unit: float, peak_flops_per_s: float) -> float:
    """MFU of model FLOPs, HFU of hardware FLOPs (PaLM, section 4.1); units are steps of a run, tokens of a plan."""
    return units_per_s * flops_per_unit / peak_flops_per_s


def parse_targets(words: Iterable[str]) -> dict[str, float]:
    """``NAME=RATIO`` as given to ``--target``. Raises UsageError.

    >>> parse_targets(["utilization=0.8", "mfu=40%"])
    {'utilization': 0.8, 'mfu': 0.4}
    """
    found: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in TARGETS:
            raise UsageError(f"--target {word}: {name!r} is not known{suggest_known(name, TARGETS)}")
        try:
            ratio = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            ratio = -1.0
        if not 0 < ratio <= 1:
            raise UsageError(f"--target {word}: give a share above 0 and up to 1, such as {name}=0.8")
        found[name] = ratio
    return found
