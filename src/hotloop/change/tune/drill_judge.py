"""An undisturbed run, interrupted ones and their restarts -> what each interruption cost, and its verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import median

from hotloop.core.drill import DrillMoment, DrillSignal, DrillVerdict

from .rehearsal import ObservedRun

# How losses of the same step repeat from run to run.
EXACT, NEAR, NOT, UNKNOWN = "exact", "near", "not", "unknown"
# Losses that differ by more do not identify a step.
MOST_NEAR_RATIO = 1e-3
# Later steps may differ by this much more than the steps that were compared.
BAND_FACTOR = 4.0
LEAST_COMPARED = 3
LEVEL_STEPS = 5
# Two levels of the loss differ where they are further apart than this many usual changes from step to step.
SPREAD_FACTOR = 2.0
# Saves that do not come at a fixed number of steps (by time, say) may be this much rarer than those that were seen.
IRREGULAR_FACTOR = 1.5
# The worst first.
VERDICTS: tuple[DrillVerdict, ...] = ("fail", "cannot tell", "pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """One interruption: the signal, the run that got it, the files that it left, and the same command again."""

    signal: str
    first: ObservedRun
    again: ObservedRun
    torn: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    has_checkpoint: bool = False
    """Whether files of a checkpoint were there after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """The reference of interrupted runs. ``band_ratio`` is by how much a loss may differ."""

    run: ObservedRun
    repeats: str
    band_ratio: float
    interval: int | None
    grace_s: float

    @property
    def steps_count(self) -> int | None:
        """None where the run was cut."""
        return len(self.run.losses) if self.run.is_whole else None

    def is_same(self, one: float | None, other: float | None) -> bool:
        return one is not None and other is not None and abs(one - other) <= self.band_ratio * max(abs(one), abs(other))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Where the restart resumed: after ``step`` steps (None: unknown). ``fault``: why that is not a resumption,
    ``doubt``: why it cannot be judged."""

    step: int | None
    fault: str = ""
    doubt: str = ""
    note: str = ""


def describe_undisturbed(run: ObservedRun, interrupted: Sequence[Interrupted], grace_s: float) -> Undisturbed:
    """The undisturbed run, with what the interrupted ones show, until their signal, of how well its losses repeat."""
    pairs = [
        (one, other)
        for pair in interrupted
        for one, other in zip(
            run.losses, pair.first.losses[: pair.first.count_steps(pair.first.sent_ns or 0)], strict=False
        )
    ]
    repeats, band = compare_losses(pairs)
    return Undisturbed(run=run, repeats=repeats, band_ratio=band, interval=find_interval(run), grace_s=grace_s)


def compare_losses(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[str, float]:
    """How losses of the same steps repeat, and by which ratio later ones may differ.

    >>> compare_losses([(1.0, 1.0)] * 3), compare_losses([(1.0, 2.0)] * 3)[0], compare_losses([])[0]
    (('exact', 0.0), 'not', 'unknown')
    """
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    if len(known) < LEAST_COMPARED:
        return (NOT if pairs and len(known) < len(pairs) else UNKNOWN), 0.0
    most = max(0.0 if one == other else abs(one - other) / max(abs(one), abs(other)) for one, other in known)
    if most == 0.0:
        return EXACT, 0.0
    return (NEAR, BAND_FACTOR * most) if most <= MOST_NEAR_RATIO else (NOT, 0.0)


def find_interval(run: ObservedRun) -> int | None:
    """The most steps between two saves of a training, its start included, its end excluded; None without saves."""
    steps = sorted({one.step for one in run.saves if one.step and not (run.is_whole and one.step == len(run.losses))})
    gaps = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    if not gaps:
        return None
    is_regular = max(gaps) - min(gaps) <= 1
    return max(gaps) if is_regular else math.ceil(IRREGULAR_FACTOR * max(gaps))


def find_resumption(whole: Undisturbed, again: ObservedRun, done: int) -> Resumption:
    """Where in the undisturbed run the restart resumed, after an interruption at ``done`` steps."""
    total = whole.steps_count
    if not again.losses:
        if again.is_whole and total is not None and done >= total:
            return Resumption(step=total)
        return Resumption(step=None, fault="the restart did not train")
    if whole.repeats == NOT or None in again.losses or None in whole.run.losses:
        return _count_resumption(whole, again, done)
    same = [_count_same(whole, again, step) for step in range(min(len(whole.run.losses), done + 2))]
    full = [step for step, count in enumerate(same) if count == min(len(again.losses), len(whole.run.losses) - step)]
    if full:
        by_count = None if total is None or not again.is_whole else total - len(again.losses)
        step = by_count if by_count in full else max((one for one in full if one <= done), default=full[0])
        return Resumption(step=step)
    if whole.repeats == UNKNOWN:
        return Resumption(
            step=None,
            doubt="too few steps of the run without interruption were repeated to know how well losses repeat",
        )
    step = max(range(len(same)), key=lambda one: same[one])
    if same[step]:
        text = (
            f"it resumes at step {step}, but from step {step + same[step]} on, the loss differs from the run without "
            "interruption: the optimizer, the learning rate or random draws were not restored"
        )
        return Resumption(step=step, fault=text if step else "it started again from the beginning")
    levels = {
        "again": "it started again with other numbers: nothing was restored",
        "goes on": "the loss continues at its level, but no step's loss matches the run without interruption: the "
        "data differs, or random draws were not restored",
        "": "no loss after the restart matches the run without interruption",
    }
    return Resumption(step=None, fault=levels[_find_level(whole.run, again, done)])


def _count_same(whole: Undisturbed, again: ObservedRun, step: int) -> int:
    """How many of the first losses after the restart are those of the undisturbed run from a step on."""
    pairs = zip(again.losses, whole.run.losses[step:], strict=False)
    return sum(1 for _ in takewhile(lambda pair: whole.is_same(*pair), pairs))


def _count_resumption(whole: Undisturbed, again: ObservedRun, done: int) -> Resumption:
    """Where losses do not repeat: by the number of steps, and the level of the loss."""
    level, total = _find_level(whole.run, again, done), whole.steps_count
    if total is None or not again.is_whole:
        if level == "again":
            return Resumption(step=None, fault="the loss starts again at its initial level")
        return Resumption(
            step=None, doubt="losses do not repeat from run to run, and the steps could not be counted to their end"
        )
    step = total - len(again.losses)
    if step == 0:
        return Resumption(step=0)
    if step < 0 or not level:
        return Resumption(
            step=None, doubt="losses do not repeat from run to run, and neither their level nor their number settles it"
        )
    if level == "again":
        text = "the step counter continues, but the loss starts again: no parameters were restored"
        return Resumption(step=step, fault=text)
    return Resumption(
        step=step,
        note="losses do not repeat from run to run: the verdict is based on the number of steps and the "
        "level of the loss",
    )


def _find_level(whole: ObservedRun, again: ObservedRun, done: int) -> str:
    """Whether the losses after the restart are like those at the start ("again") or before the signal ("goes on")."""
    until = min(done, len(whole.losses))
    parts = (whole.losses[:LEVEL_STEPS], whole.losses[max(0, until - LEVEL_STEPS) : until], again.losses[:LEVEL_STEPS])
    start, before, after = ([one for one in part if one is not None] for part in parts)
    if until < 2 * LEVEL_STEPS or not (start and before and after):
        return ""
    spread = max(median([abs(b - a) for a, b in pairwise(part)] or [0.0]) for part in (start, before))
    low, high = median(before), median(start)
    if abs(high - low) <= SPREAD_FACTOR * spread:
        return ""
    return "again" if abs(median(after) - high) < abs(median(after) - low) else "goes on"


def judge_moment(whole: Undisturbed, pair: Interrupted) -> DrillMoment:
    """The cost of one interruption. A fault fails, a doubt leaves it open, otherwise it was survived."""
    first, again = pair.first, pair.again
    assert first.sent_ns is not None
    done = len(first.losses)
    late = [one for one in first.saves if one.end_ns is not None and one.end_ns >= first.sent_ns]
    faults, doubts, notes = _judge_end(whole, pair, bool(late))
    resumption = find_resumption(whole, again, done)
    has_failed = again.how == "exited" and again.exit_code != 0
    if has_failed or again.how == "hang":
        torn = f" ({', '.join(pair.torn[:3])} cannot be read)" if pair.torn else ""
        faults.append(f"the restart failed{torn}: {again.last_line}")
    elif not again.losses and again.how != "exited":
        doubts.append(f"the restart completed no step in {again.duration_s:.0f} s")
    elif resumption.fault:
        faults.append(resumption.fault)
    else:
        fault, doubt = _judge_loss(whole, pair, resumption, done, bool(late))
        faults += filter(None, [fault])
        doubts += filter(None, [doubt, resumption.doubt])
        notes += filter(None, [resumption.note])
    lost = None if resumption.step is None else max(0, done - resumption.step)
    if pair.torn and not faults:
        notes.append(f"{', '.join(pair.torn[:3])} cannot be read; the restart continued without them")
    if pair.left_over:
        notes.append(f"left over: {', '.join(pair.left_over[:3])}")
    return DrillMoment(
        moment=first.name_moment(),
        verdict="fail" if faults else "cannot tell" if doubts else "pass",
        reasons=tuple(faults or doubts or [f"resumed at step {resumption.step}, {lost} lost"]),
        at_step=first.count_steps(first.sent_ns),
        steps_done=done,
        exit_code=first.exit_code,
        exit_s=(first.ended_ns - first.sent_ns) * 1e-9,
        saved=bool(late),
        save_s=late[-1].length_s if late else None,
        resumed_at_step=resumption.step,
        steps_lost=lost,
        restart_exit_code=again.exit_code,
        torn=pair.torn,
        left_over=pair.left_over,
        notes=tuple(notes),
    )


def _judge_end(whole: Undisturbed, pair: Interrupted, has_saved: bool) -> tuple[list[str], list[str], list[str]]:
    """Faults, doubts and notes of how the command ended after the signal."""
    if pair.first.how == "overdue":
        text = f"still running {whole.grace_s:g} s after SIG{pair.signal}, and was killed"
        # SIGUSR1 is only a notice: a training that saves and continues loses nothing.
        return ([], [], [text]) if pair.signal == "USR1" and has_saved else ([text], [], [])
    if pair.first.how != "exited":
        return [], [f"hotloop ended the command: {pair.first.how}"], []
    if pair.first.is_whole and len(pair.first.losses) >= len(whole.run.losses):
        return [], ["training ran to its end after the signal: interrupt a longer run"], []
    text = "it ended with 0: a scheduler considers it finished, and does not start it again"
    return [], [], [text] if pair.first.is_whole else []


def _judge_loss(
    whole: Undisturbed, pair: Interrupted, resumption: Resumption, done: int, has_saved: bool
) -> tuple[str, str]:
    """A fault or a doubt: was more lost than the work between two saves, and did the restart train to the same end?"""
    if resumption.step is None:
        return "", ""
    total, lost = whole.steps_count, max(0, done - resumption.step)
    allowed = max(whole.interval or 0, 1 if has_saved else 0)
    ended = resumption.step + len(pair.again.losses)
    had = any(one.end_ns is not None and one.step for one in pair.first.saves) or pair.has_checkpoint
    if resumption.step == 0 and lost and had:
        return f"it started again from the beginning although there is a checkpoint: all {lost} steps were lost", ""
    if lost > allowed and not had and total is None:
        return "", "nothing was saved in the part of the run that was seen"
    if lost > allowed and not had:
        return f"nothing had been saved: all {lost} steps were lost", ""
    if lost > allowed:
        return f"{lost} steps were lost, but there are at most {allowed} steps between two saves", ""
    if total is not None and pair.again.is_whole and ended != total:
        return f"it trained to step {ended}, but the run without interruption to {total}", ""
    return "", ""


def judge_signal(signal: str, moments: Sequence[DrillMoment], missed: Sequence[str] = ()) -> DrillSignal:
    """All moments of a signal: the worst one decides. It has not passed where moments were ``missed``."""
    if not moments:
        return DrillSignal(
            signal=signal, verdict="cannot tell", reasons=("not rehearsed",), moments=(), saved=False, 
            save_s=None, steps_lost=None, resumed_at_step=None, exit_code=None,
        )  # fmt: skip
    worst = min(moments, key=lambda one: (VERDICTS.index(one.verdict), -(one.steps_lost or 0)))
    reasons = [
        f"{name_place(one)}: {reason}" for one in moments if one.verdict == worst.verdict for reason in one.reasons
    ]
    if missed and worst.verdict == "pass":
        reasons = [f"it was not rehearsed in a {name}" for name in missed]
    return DrillSignal(
        signal=signal,
        verdict="cannot tell" if missed and worst.verdict == "pass" else worst.verdict,
        reasons=tuple(reasons),
        moments=tuple(moments),
        saved=worst.saved,
        save_s=max((one.save_s for one in moments if one.save_s is not None), default=None),
        steps_lost=worst.steps_lost,
        resumed_at_step=worst.resumed_at_step,
        exit_code=worst.exit_code,
    )


def name_place(moment: DrillMoment) -> str:
    """``in a save, at step 20``."""
    place = {"warm-up": "in warm-up", "step": "in a step", "evaluation": "in an evaluation", "save": "in a save"}
    return f"{place.get(moment.moment, moment.moment)}, at step {moment.at_step}"
