"""The result of a rule: a Finding with its cost, its forecast saving, its evidence and its place; or Skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from .errors import InvariantError

Value = str | int | float | bool | None | list[Any] | dict[str, Any]


class Kind(str, Enum):
    """Something is wrong (fault), or a technique might save time (opportunity)."""

    FAULT = "fault"
    OPPORTUNITY = "opportunity"


class Severity(str, Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


class Basis(str, Enum):
    """How a saving was forecast, best first; ``bounded`` is the measured limit of any fix (Bound)."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    RULE_OF_THUMB = "rule-of-thumb"
    BOUNDED = "bounded"


class Safety(str, Enum):
    """Who may apply a fix: hotloop by itself, hotloop after asking, or only the reader."""

    AUTO = "auto"
    ASK = "ask"
    SHOW = "show"


class Numerics(str, Enum):
    """The effect of a fix on the training's numbers."""

    EXACT = "exact"
    REORDERED = "reordered"
    RESAMPLED = "resampled"
    LOSSY = "lossy"


Effort = Literal["easy", "medium", "hard"]
"""Of editing the program, not of tuning it afterwards. easy: an option, a variable or a line; medium: lines in several
places, or a new function or class; hard: a different structure of the program, its data or its machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Forecast saving as fractions of the time per unit of work, 0..1, with low <= mid <= high."""

    low_ratio: float
    mid_ratio: float
    high_ratio: float
    basis: Basis

    def __post_init__(self) -> None:
        if not 0.0 <= self.low_ratio <= self.mid_ratio <= self.high_ratio <= 1.0:
            raise InvariantError(
                "a saving needs 0 <= low <= mid <= high <= 1, got "
                f"{self.low_ratio}, {self.mid_ratio}, {self.high_ratio}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A place in the user's code. ``line`` is 1-based."""

    file: str
    line: int
    function: str
    """With its class, ``Saver.on_step_end``, if the file has several of that name."""

    @property
    def name(self) -> str:
        """The function's name alone."""
        return self.function.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The act that treats a finding (docs/vocabulary.md lists them) and its settings.

    A rule names these two. The rest belongs to the act and comes from its file (``fill_fixes`` in core/acts.py), unless
    the rule knows better in this case: another class of numerics, or SHOW if the technique cannot reach it. None and
    empty if the act is unknown.
    """

    technique: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    safety: Safety | None = None
    numerics: Numerics | None = None
    effort: str | None = None
    """An Effort; in a report that was read from a file, whatever it says."""
    act: str = ""
    """What the act does, in one line of Markdown."""
    by_hand: str = ""
    """How the reader does it, in Markdown; empty for acts that hotloop applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a perfect fix of a finding could save at most: the step was timed in ``pairs`` of processes, with the cost
    and without it.

    ``saving`` (basis ``bounded``) is a 90% interval of the fraction of the time per unit; None if it was not measured,
    and ``reason`` says why. If it was, ``reason`` says what else the ablation takes away, or leaves.
    """

    ablation: str
    saving: Saving | None
    pairs: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault or opportunity. ``cost_*`` is what is lost, ``saving`` what the fix is forecast to save.

    The rule's decorator (core/rules.py) fills in ``rule``, ``kind``, ``unit`` and ``next``.
    ``cost_ns`` is per step; ``cost_ratio`` and the saving are fractions of the time per ``unit``.
    With ``base`` "run", it is about time outside the steady steps (compilation, a cold cache), paid once per start:
    ``cost_ns`` is of this entire run and ``cost_ratio`` its share of the run, from the first step to the end (for
    slow-start, from the import of torch on); a saving is not forecast, since the share shrinks as the training gets
    longer.
    ``severity_override`` is set only for harm that is not lost time in every step (memory-growth and its kin, one-time
    costs); otherwise the severity follows from ``saving.low_ratio``.
    """

    rule: str = ""
    kind: Kind = Kind.FAULT
    title: str
    phase: str | None = None
    cost_ns: int | None = None
    cost_ratio: float | None = None
    saving: Saving | None = None
    evidence: Mapping[str, Value]
    where: tuple[Where, ...] = ()
    fix: Fix | None = None
    ranks: tuple[int, ...] = ()
    unit: str = ""
    next: str | None = None
    base: str = "steady"
    severity_override: Severity | None = field(default=None)
    time_ns: Mapping[str, int] | None = None
    """The time that ``cost_ns`` counts, by phase of the breakdown (in a profiler's files, also by part of the device's
    time); no other finding counts it too. None if the time is not this finding's alone: a technique for all of the
    computation, or a cost that may be in any phase."""
    rule_saving: Saving | None = None
    """What the fixes of all findings of this rule save together; None for a rule with one finding."""
    bound: Bound | None = None
    """None unless trials measured it (``hotloop run --bounds``, ``hotloop tune``)."""

    def __post_init__(self) -> None:
        if self.base not in ("steady", "run") or (self.base == "run" and self.saving is not None):
            raise InvariantError(f"{self.rule}: base {self.base} is not known or does not go with a saving")
        if self.saving and self.cost_ratio is not None and self.saving.mid_ratio > self.cost_ratio + 1e-9:
            raise InvariantError(
                f"{self.rule}: the forecast {self.saving.mid_ratio} exceeds the cost {self.cost_ratio}"
            )

    @property
    def severity(self) -> Severity:
        """high >= 0.15, medium >= 0.05, low >= 0.01 of saving.low_ratio, else info."""
        if self.severity_override is not None:
            return self.severity_override
        return severity_of(self.saving)


def severity_of(saving: Saving | None) -> Severity:
    """Severity of a forecast saving; info if there is none."""
    if saving is None:
        return Severity.INFO
    for threshold_ratio, severity in ((0.15, Severity.HIGH), (0.05, Severity.MEDIUM), (0.01, Severity.LOW)):
        if saving.low_ratio >= threshold_ratio:
            return severity
    return Severity.INFO


REMOVED_LOW_RATIO = 0.7
"""Range factor: the low end of a saving, as a part of the timed work that the fix removes for certain.

By each side's fastest run, all 16 faults of the known sets that a fix removes saved more than this of their cost (the
least 0.83); by medians, 14 did (the others, whose runs scatter, saved 0.39 and 0.45). The faults are those of
benchmarks/results/zoo/55f64a285295.jsonl of 2026-11-22 and treated/c75a504ea710.jsonl of 2026-11-21 with a measured
saving of 0.15 or more. tests/diagnose/test_removal.py recomputes it.
"""


def saving_within(cost_ratio: float, low_ratio: float, mid_ratio: float, high_ratio: float, basis: Basis) -> Saving:
    """A Saving clamped to what a rule can time: none of the three exceeds the cost, and they stay in order.

    All are fractions of the time per unit of work. The reported range may end higher: see ``widen`` in
    hotloop/judge/diagnose/completion.py.

    >>> saving_within(0.3, 0.2, 0.4, 0.5, Basis.SIMULATED).mid_ratio
    0.3
    """
    high = min(max(high_ratio, 0.0), max(cost_ratio, 0.0), 1.0)
    mid = min(max(mid_ratio, 0.0), high)
    return Saving(low_ratio=min(max(low_ratio, 0.0), mid), mid_ratio=mid, high_ratio=high, basis=basis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A rule or measurement that could not be judged, and why. The rule's decorator fills in ``rule``."""

    rule: str = ""
    reason: str


def saving_of_removal(cost_ratio: float, removed_ratio: float | None = None, sure_ratio: float | None = None) -> Saving:
    """A step's saving from removing work that was timed in this run: the middle is that time itself.

    ``removed_ratio`` is what the fix removes of the cost (all of it unless given), ``sure_ratio`` the part of that
    which is certain to go.

    >>> saving_of_removal(0.4, 0.3)
    Saving(low_ratio=0.21, mid_ratio=0.3, high_ratio=0.4, basis=<Basis.SIMULATED: 'simulated'>)
    """
    removed = cost_ratio if removed_ratio is None else removed_ratio
    sure = removed if sure_ratio is None else min(sure_ratio, removed)
    return saving_within(cost_ratio, REMOVED_LOW_RATIO * sure, removed, cost_ratio, Basis.SIMULATED)
