"""What a rule says: a Finding with its cost, its forecast saving, its evidence and its place; or Skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from .errors import InvariantError

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]


class Kind(str, Enum):
    """Something is wrong (fault), or a technique might win (opportunity)."""

    FAULT = "fault"
    OPPORTUNITY = "opportunity"


class Severity(str, Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


class Basis(str, Enum):
    """How a saving was forecast, best first."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    RULE_OF_THUMB = "rule-of-thumb"


class Safety(str, Enum):
    """Who may apply a fix: hotloop by itself, hotloop after asking, or only the reader."""

    AUTO = "auto"
    ASK = "ask"
    SHOW = "show"


class Numerics(str, Enum):
    """What a fix does to the training's numbers."""

    EXACT = "exact"
    REORDERED = "reordered"
    RESAMPLED = "resampled"
    LOSSY = "lossy"


Effort = Literal["easy", "medium", "hard"]
"""Of editing the program, not of tuning it afterwards. easy: an option, a variable or a line; medium: lines in several
places, or a new function or class; hard: another structure of the program, its data or its machines."""


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
    """With its class, ``Saver.on_step_end``, where the file has several of the name."""

    @property
    def name(self) -> str:
        """The function's name alone."""
        return self.function.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The act that treats a finding (docs/vocabulary.md lists them) and its settings.

    A rule names these two. The rest is the act's own and comes from its file (``fill_fixes`` in core/acts.py), except
    what the rule knows of this very case: another class of numerics, or SHOW where the technique cannot reach. None and
    empty where the act is not known.
    """

    technique: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    safety: Safety | None = None
    numerics: Numerics | None = None
    effort: str | None = None
    """An Effort; of a report that was read, whatever it says."""
    act: str = ""
    """What the act does in one line of Markdown."""
    by_hand: str = ""
    """How the reader does it, in Markdown; empty for what hotloop applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault or opportunity. ``cost_*`` is what is lost, ``saving`` what the fix is forecast to win back.

    ``rule``, ``kind``, ``unit`` and ``next`` are filled in by the rule's decorator (core/rules.py).
    ``cost_ns`` is per step; ``cost_ratio`` and the saving are fractions of the time per ``unit``.
    With ``base`` "run" it is about what the steady steps leave out (compilation, a cold cache), paid once per start:
    ``cost_ns`` is of this whole run and ``cost_ratio`` its share of the run, from the first step to the end (of
    slow-start from the import of torch on); a saving is not forecast, since the share shrinks as the training gets
    longer.
    ``severity_override`` is set only for harm that is no loss of time in every step (memory-growth and its kin, what is
    paid once); otherwise the severity follows from ``saving.low_ratio``.
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
    """The time that ``cost_ns`` counts, by phase of the breakdown (in a profiler's files also by part of the device's
    time): no other finding counts it too. None where it is not this finding's alone: a technique for all of the
    computing, or a cost that may lie in any phase."""
    rule_saving: Saving | None = None
    """What the fixes of all findings of this rule save together; None for a rule with one finding."""

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
    """Severity of a forecast saving; info when there is none."""
    if saving is None:
        return Severity.INFO
    for threshold_ratio, severity in ((0.15, Severity.HIGH), (0.05, Severity.MEDIUM), (0.01, Severity.LOW)):
        if saving.low_ratio >= threshold_ratio:
            return severity
    return Severity.INFO


REMOVED_LOW_RATIO = 0.7
"""Range factor: the low end of a saving, as a part of the timed work that the fix removes for certain.

Of 16 faults of the known sets that a fix removes (benchmarks/results/zoo/55f64a285295.jsonl of 2026-11-22 and
treated/c75a504ea710.jsonl of 2026-11-21, realised saving of 0.15 or more) all won more than this of their cost by each
side's fastest run (least 0.83), and 14 by medians (the others, whose runs scatter, 0.39 and 0.45).
tests/diagnose/test_removal.py recomputes it.
"""


def saving_within(cost_ratio: float, low_ratio: float, mid_ratio: float, high_ratio: float, basis: Basis) -> Saving:
    """A Saving clamped to what a rule can time: none of the three exceeds the cost, and they stay in order.

    All are fractions of the time per unit of work. What is told may end higher: see ``widen`` in
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
    """What a step wins without work that was timed in this run: the middle is that time itself.

    ``removed_ratio`` is what the fix takes of the cost (all of it unless given), ``sure_ratio`` the part of that which
    is certain to go.

    >>> saving_of_removal(0.4, 0.3)
    Saving(low_ratio=0.21, mid_ratio=0.3, high_ratio=0.4, basis=<Basis.SIMULATED: 'simulated'>)
    """
    removed = cost_ratio if removed_ratio is None else removed_ratio
    sure = removed if sure_ratio is None else min(sure_ratio, removed)
    return saving_within(cost_ratio, REMOVED_LOW_RATIO * sure, removed, cost_ratio, Basis.SIMULATED)
