"""Samples of the cores' use (cores.json) -> how much of them others used while a training was steady."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotloop.core.report import Health

CROWDED_RATIO = 0.10
"""If others used this share of the cores or more, a result counts as disturbed, as in docs/accuracy.md."""
FREE_CORES_COUNT = 1.0
"""If at least this many cores were idle on average, there was room for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """Shares of the time of all cores that the training may run on, 0..1, between its first and last steady step."""

    others_ratio: float
    """Used by other programs, including what the hypervisor took."""
    stolen_ratio: float | None
    idle_cores: float
    cores_count: int | None
    own_ratio: float | None = None
    """CPU time of the training, all processes below the one that started it, over that of the cores it may use."""


def read_host_load(path: Path, span_s: tuple[float, float] | None) -> HostLoad | None:
    """Who used the cores from the first to the last steady step (Unix times in s); None if nobody sampled it."""
    if span_s is None:
        return None
    try:
        recorded = json.loads(path.read_text())
        return load_between(recorded["samples"], *span_s, allowed_cores=recorded.get("allowed_cores"))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def read_others_ratio(path: Path, span_s: tuple[float, float] | None) -> float | None:
    """Share of the cores' time that other programs used in a span, 0..1; None if nobody sampled it."""
    load = read_host_load(path, span_s)
    return None if load is None else load.others_ratio


def load_between(
    samples: Sequence[Sequence[float]], start_s: float, end_s: float, allowed_cores: int | None = None
) -> HostLoad | None:
    """The load in a span, from samples of (clock, busy, total, own[, stolen]), all in seconds of all cores together.

    ``allowed_cores``: the number that the training may use, if a quota allows fewer than there are.

    >>> load = load_between([(0.0, 0.0, 0.0, 0.0, 0.0), (10.0, 12.0, 20.0, 8.0, 1.0)], 2.0, 7.0)
    >>> load.others_ratio, load.stolen_ratio, load.idle_cores, load.cores_count
    (0.2, 0.05, 0.8, 2)
    """
    if len(samples) < 2 or end_s <= start_s or not samples[0][0] <= start_s <= end_s <= samples[-1][0] + 1.0:
        return None
    clock = [one[0] for one in samples]
    busy_s, whole_s, own_s, *rest_s = (
        float(np.interp(end_s, clock, values) - np.interp(start_s, clock, values))
        for values in list(zip(*samples, strict=True))[1:]
    )
    if whole_s <= 0:
        return None
    cores = whole_s / (end_s - start_s)
    return HostLoad(
        others_ratio=min(max((busy_s - own_s) / whole_s, 0.0), 1.0),
        stolen_ratio=min(max(rest_s[0] / whole_s, 0.0), 1.0) if rest_s else None,
        idle_cores=max(0.0, cores * (1.0 - busy_s / whole_s)),
        cores_count=round(cores) or None,
        own_ratio=min(max(own_s / min(whole_s, (allowed_cores or cores) * (end_s - start_s)), 0.0), 1.0),
    )


def describe_load(load: HostLoad | None) -> tuple[Health, ...]:
    """A warning if others held cores that the training could have used."""
    if load is None or load.others_ratio < CROWDED_RATIO or load.idle_cores >= FREE_CORES_COUNT:
        return ()
    cores = "the core's" if load.cores_count == 1 else f"the {load.cores_count or ''} cores'".replace("  ", " ")
    stolen = ""
    if load.stolen_ratio is not None and load.stolen_ratio >= 0.5 * load.others_ratio:
        stolen = f" ({load.stolen_ratio:.0%} by the hypervisor, for other virtual machines)"
    message = (
        f"other programs used {load.others_ratio:.0%} of {cores} time during the steady steps{stolen}: steps took "
        "longer and varied more, and fixes may save only half of their forecast; measure again on a quiet machine"
    )
    return (Health(level="warning", message=message),)
