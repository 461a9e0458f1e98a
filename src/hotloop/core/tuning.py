"""The results of tuning: the trials of a training with their verdicts, and the strategy that was proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from .findings import Saving, Value


class TrialVerdict(str, Enum):
    """What is known about a candidate after its trials."""

    FASTER = "faster"
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    SMALLER = "smaller"
    """Less peak memory, if memory is the goal."""
    LARGER = "larger"
    REJECTED = "rejected"
    """It had no effect on anything, or it changed the training's numbers beyond its class."""
    FAILED = "failed"
    """Its trials ended in an error, out of memory, or without an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate: what was tried, and the result. Field names are those of the JSON contract.

    ``n`` counts the pairs of fresh processes that the ratio rests on; ``speedup_ratio`` is the baseline's time per
    ``unit`` over the candidate's, with an interval that holds at every look; None while there is no such number.
    """

    id: str
    techniques: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Value]]
    verdict: TrialVerdict
    reason: str
    n: int
    unit: str
    speedup_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    memory_ratio: float | None = None
    """Peak memory over the baseline's, on average."""
    forecast: Mapping[str, Value] = field(default_factory=dict)
    quality: Mapping[str, Value] = field(default_factory=dict)
    breakdown: Mapping[str, float] = field(default_factory=dict)
    """Mean time of every phase per step in ns, in the candidate's processes."""
    one_time_ns: int | None = None
    """Time before steps are steady beyond the baseline's (compilation, starting workers)."""
    break_even_steps: int | None = None
    """Steps after which the saving has paid for the one-time cost; None if there is no saving or no such cost."""
    memory: Mapping[str, Value] = field(default_factory=dict)
    """Peak memory by the same statistics: ``verdict``, ``saving_ratio`` (the baseline's peak over the candidate's) with
    ``low_ratio`` and ``high_ratio``, and ``n``; empty if it was not compared."""
    measured: Mapping[str, Value] = field(default_factory=dict)
    """Means of the candidate's own processes: ``process_count``, ``step_ns``, ``samples_per_s``, ``tokens_per_s``,
    ``steps_per_s``, ``rank_peak_bytes`` (the largest rank's), ``peak_bytes`` (of all together)."""
    overrides: tuple[str, ...] = ()
    """The script's own settings that it replaces, with file and line: 'fused=False at train.py:12'."""
    first_steps: int | None = None
    """If the ratio is of a process's first steps, warm-up included, their number: for costs that each start pays once.
    None if it is of the steady steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchCheck:
    """The patched copy of the source, run without a strategy in pairs with the unchanged one.

    ``status`` is 'reproduced', 'not reproduced', 'cannot tell' or 'not checked'; ``n`` counts pairs of processes.
    """

    status: str
    reason: str
    techniques: tuple[str, ...]
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Techniques of the strategy that the patch does not contain."""
    n: int = 0
    unit: str = "step"
    speedup_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    strategy_ratio: float | None = None
    """The saving of the strategy in its own trials."""
    quality: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The outcome: ``strategy_file`` is always written; it chooses nothing when nothing was proven."""

    verdict: str
    goal: str
    strategy_file: str | None
    trials: tuple[Trial, ...]
    baseline: Mapping[str, Value] = field(default_factory=dict)
    """The baseline's own processes: their number, their spread, whether their losses agree bit for bit."""
    patch: PatchCheck | None = None
    """None if there is no patch."""
    warnings: tuple[str, ...] = ()
    reference: Trial | None = None
    """What all trials are compared with, and the measurements of its own processes; None if that was not kept."""


def forecast_of(saving: Saving | None) -> dict[str, Value]:
    """A forecast as the report holds it: the saving and the resulting speedup; empty if there is none.

    >>> forecast_of(None)
    {}
    """
    if saving is None:
        return {}
    return {
        "low_ratio": saving.low_ratio,
        "mid_ratio": saving.mid_ratio,
        "high_ratio": saving.high_ratio,
        "basis": saving.basis.value,
        "speedup_ratio": None if saving.mid_ratio >= 1 else 1.0 / (1.0 - saving.mid_ratio),
    }
