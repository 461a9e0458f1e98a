"""Drill: does a training survive preemption? Signals, then the same command again; the contract hotloop.drill/1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DRILL_SCHEMA = "hotloop.drill/1"
"""Version of the contract. Fields are added, never changed."""
DrillVerdict = Literal["pass", "fail", "cannot tell"]
SIGNALS = ("TERM", "USR1", "KILL")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillMoment:
    """One interruption and the restart after it.

    ``moment``: warm-up, step, evaluation or save. ``at_step`` complete steps were done when the signal came,
    ``steps_done`` when the command ended. ``exit_code`` is a shell's (128 + signal), None if it had to be killed after
    the grace period. ``exit_s`` is from the signal to the end. ``saved``: a checkpoint was completed after the signal,
    in ``save_s``. ``torn`` files cannot be read, ``left_over`` are files that an undisturbed run does not keep.
    ``resumed_at_step``: steps that the restart did not have to repeat; None if that is unknown.
    """

    moment: str
    verdict: DrillVerdict
    reasons: tuple[str, ...]
    at_step: int
    steps_done: int
    exit_code: int | None
    exit_s: float
    saved: bool
    save_s: float | None
    resumed_at_step: int | None
    steps_lost: int | None
    restart_exit_code: int | None
    torn: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSignal:
    """All moments of one signal. The other fields are of the moment that decided; ``save_s`` is the longest of all."""

    signal: str
    verdict: DrillVerdict
    reasons: tuple[str, ...]
    moments: tuple[DrillMoment, ...]
    saved: bool
    save_s: float | None
    steps_lost: int | None
    resumed_at_step: int | None
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTimes:
    """Seconds of the ``n`` saves that were seen in full; None if there was none."""

    p50: float | None
    p99: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """``steps_count`` is of the undisturbed run, which ``is_whole`` unless it was cut. ``repeats``: how well the losses
    of undisturbed steps repeat: exact, near, not, or unknown.

    ``interval_steps`` is the largest number of steps between two saves. ``grace_s`` is the notice that the training
    needs, ``rehearsed_grace_s`` the notice that it was given. ``interval_s`` is the best interval between two saves
    (Daly) for one interruption in ``mtbf_s``. ``expected_waste_ratio`` is the share of time that is lost at the
    training's own interval if it is known, else at the best one. ``launch`` are options for ``hotloop launch``.
    """

    tool_version: str
    verdict: DrillVerdict
    reason: str
    command: tuple[str, ...]
    signals: tuple[DrillSignal, ...]
    save_seconds: SaveTimes
    steps_count: int
    is_whole: bool
    repeats: str
    step_s: float | None
    restart_s: float | None
    interval_steps: int | None
    grace_s: int | None
    rehearsed_grace_s: float
    interval_s: float | None
    mtbf_s: float
    expected_waste_ratio: float | None
    launch: str
    took_s: float
    limits: tuple[str, ...] = ()
