"""Check: launches of a training against those of its baseline, and the judgement; the contract hotloop.check/1.

A launch is one recorded run of a command in fresh processes. Values are means over its steady steps; None is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from .findings import Value, Where

CHECK_SCHEMA = "hotloop.check/1"
"""Version of the contract. Fields are added, never changed."""


class CheckVerdict(str, Enum):
    """``INCONCLUSIVE``: the noise, or a lack of knowledge about it, leaves both open."""

    PASS = "pass"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"


def format_change(ratio: float) -> str:
    """A worsening in words: in percent of the reference, or from ten times on as a multiple of it.

    >>> format_change(0.0312), format_change(-0.2), format_change(123.9)
    ('+3.1%', '-20.0%', '+124 times')
    """
    return f"{ratio:+.1%}" if abs(ratio) < 10 else f"{ratio:+,.0f} times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A value of one launch, in the unit that its name ends with; ``error`` is the standard error from its steps."""

    value: float
    error: float | None = None
    freedom: float | None = None
    """Degrees of freedom that the error was estimated with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one run contributes to a gate."""

    name: str
    """As the user gave it, or as a baseline file keeps it."""
    measures: Mapping[str, Measure]
    """By name: step_ns, a phase as <phase>_ns, memory_peak_bytes, samples_per_s, ..."""
    steps_count: int
    unit: str
    units_per_step: float | None
    """Of all ranks together."""
    unit_drifts: bool = False
    """Whether the units of a step grow or shrink over the run."""
    machine: Mapping[str, Value] = field(default_factory=dict)
    """Conditions that must be equal for times to compare: device, cores, memory, ranks."""
    places: Mapping[str, Where] = field(default_factory=dict)
    """The line of the user's code that took most of each phase, by phase."""
    warnings: tuple[str, ...] = ()
    targets: Mapping[str, float] = field(default_factory=dict)
    """The minimum utilization that the run should reach, by name (core.utilization.TARGETS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One value judged against the baseline (``kind`` 'baseline') or against a limit (``kind`` 'budget').

    Ratios are of worsening: positive is slower, larger, or fewer per second. For a phase, they are fractions of the
    baseline's full step, so that a tiny phase is not judged by its own size. ``low_ratio`` to ``high_ratio`` is the
    range of the worsening at the confidence of the check; None if it is unknown.
    """

    id: str
    """Such as 'step_ns', 'phase/input_wait', 'budget/step_ms'."""
    kind: str
    name: str
    """The measure's name, which ends with the unit of ``value`` and ``reference``."""
    verdict: CheckVerdict
    value: float | None
    reference: float | None
    """The baseline's mean, or the limit."""
    change_ratio: float | None
    low_ratio: float | None
    high_ratio: float | None
    tolerance_ratio: float | None
    reason: str
    """One sentence about what decided."""
    decides: bool = True
    """If False, an inconclusive result here does not change the overall verdict (a phase of a step that was judged)."""
    where: Where | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged:
    """A value that could not be judged, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of the gate. ``verdict`` follows from ``judged``."""

    tool_version: str
    command: tuple[str, ...]
    runs: tuple[str, ...]
    baseline: str | None
    baseline_count: int
    """Launches of the baseline."""
    run_count: int
    noise: str
    """What is known about the noise between launches, in one sentence."""
    confidence_ratio: float
    judged: tuple[Judged, ...]
    skipped: tuple[NotJudged, ...]
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> CheckVerdict:
        """Regression if any value is one; pass if every value that decides passed, and there is at least one."""
        if any(one.verdict is CheckVerdict.REGRESSION for one in self.judged):
            return CheckVerdict.REGRESSION
        deciding = [one for one in self.judged if one.decides]
        if deciding and all(one.verdict is CheckVerdict.PASS for one in deciding):
            return CheckVerdict.PASS
        return CheckVerdict.INCONCLUSIVE
