"""A training command and a budget -> a Drill: signals at drawn moments, the same command again, and what was lost."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from hotloop import __version__
from hotloop.ahead.plan.cost import daly_interval_s, waste_ratio
from hotloop.change.tune.checkpoint_files import list_checkpoint_files, read_kept, split_torn
from hotloop.change.tune.drill_judge import (
    UNKNOWN,
    VERDICTS,
    Interrupted,
    describe_undisturbed,
    find_interval,
    judge_moment,
    judge_signal,
)
from hotloop.change.tune.rehearsal import (
    ObservedRun,
    PlannedSignal,
    find_step_s,
    lead_elsewhere,
    plan_signal,
    rehearse,
)
from hotloop.change.tune.trials import Bench, TrialLimits
from hotloop.change.tune.workspace import WorkspacePlan, code_outside, make_workspace, plan_workspace, remove_workspace
from hotloop.core.drill import Drill, DrillSignal, SaveTimes
from hotloop.core.save_notice import find_notice_s

from .trial_runs import attach_trial, measure_run

# In the order in which they are rehearsed, for the case that the budget ends.
AIMS = ("step", "save", "evaluation", "warm-up")
NEEDED_AIMS = AIMS[:2]
# Share of the budget after which the undisturbed run is cut.
WHOLE_RATIO = 0.2
# After which a restart is ended where the undisturbed run was cut.
RESTART_STEPS = 30
ASSUMED_MTBF_S = 24 * 3600.0

Emit = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRequest:
    """``command`` is resolved. ``checkpoints`` is where it writes them; one outside of ``cwd`` has to be empty."""

    command: tuple[str, ...]
    cwd: Path
    variables: Mapping[str, str]
    signals: tuple[str, ...]
    grace_s: float
    budget_s: float
    checkpoints: Path | None = None


@dataclass(slots=True)
class _Drilling:
    """A drill under way. ``kept`` are kinds of files that the undisturbed run keeps, ``missed`` by signal the
    moments that no verdict can do without, and that were not met."""

    request: DrillRequest
    bench: Bench
    emit: Emit
    begun_wall_s: float
    begun_s: float
    whole: ObservedRun = field(default_factory=lambda: ObservedRun(how="", exit_code=None))
    kept: frozenset[str] = frozenset()
    pairs: list[Interrupted] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    missed: dict[str, list[str]] = field(default_factory=dict)
    number: int = 0

    @contextmanager
    def open_copy(self) -> Iterator[Path]:
        """A fresh working copy. Checkpoints that go outside of the folder are placed next to the copy."""
        self.number += 1
        place = self.bench.folder / "work" / f"{self.number}"
        with ExitStack() as stack:
            copy = make_workspace(self.bench.plan, place)
            stack.callback(remove_workspace, copy)
            outside = self.request.checkpoints
            if outside is not None and not outside.is_relative_to(self.request.cwd):
                stack.enter_context(lead_elsewhere(outside, copy / ".hotloop-checkpoints"))
            yield copy

    def run(self, copy: Path, limits: TrialLimits, planned: PlannedSignal | None = None) -> ObservedRun:
        name = f"{self.number}-{sum(1 for _ in (self.bench.folder / 'trials').glob(f'{self.number}-*'))}"
        return rehearse(self.bench, copy, name, self.begun_wall_s, limits, self.request.grace_s, planned)


def drill(request: DrillRequest, folder: Path, emit: Emit) -> Drill:
    """Train undisturbed, then interrupt and restart until every signal was tried at every moment, or the budget ends.

    ``folder`` takes the working copies and the logs.
    """
    outside = code_outside(request.command, request.cwd)
    plan = _leave_out(plan_workspace(request.cwd, without=[folder.parent], outside=outside), request.checkpoints)
    bench = Bench(
        command=request.command,
        plan=plan,
        folder=folder,
        environment=partial(attach_trial, request.command, request.variables, deep=False),
        measure=measure_run,
    )
    (folder / "trials").mkdir(parents=True)
    drilling = _Drilling(request=request, bench=bench, emit=emit, begun_wall_s=time.time(), begun_s=time.monotonic())
    drilling.limits += plan.warnings
    try:
        reason = _observe(drilling)
        if not reason:
            _interrupt_all(drilling)
    finally:
        shutil.rmtree(folder / "work", ignore_errors=True)
    return _report(drilling, reason)


def _leave_out(plan: WorkspacePlan, checkpoints: Path | None) -> WorkspacePlan:
    """The plan without the checkpoints that are already in the folder: a drill begins from the start."""
    if checkpoints is None or not checkpoints.is_relative_to(plan.source):
        return plan
    inside = str(checkpoints.relative_to(plan.source)) + os.sep
    return replace(plan, entries=tuple(one for one in plan.entries if not one.path.startswith(inside)))


def _observe(drilling: _Drilling) -> str:
    """The undisturbed run; why nothing can be rehearsed, if so."""
    budget_s = drilling.request.budget_s
    drilling.emit("training undisturbed")
    limits = TrialLimits(
        steps=None, seconds=None, timeout_s=WHOLE_RATIO * budget_s, start_s=0.5 * budget_s, stall_s=0.5 * budget_s
    )
    with drilling.open_copy() as copy:
        whole = drilling.whole = drilling.run(copy, limits)
        drilling.kept = read_kept(copy)
    if whole.outside:
        return (
            f"the command writes checkpoints outside of its folder, to {whole.outside[0]}, which stays there: empty "
            f"that folder and name it with --checkpoints {os.path.dirname(whole.outside[0])}"
        )
    if whole.how == "exited" and whole.exit_code != 0:
        return f"the command failed without interruption, with {whole.exit_code}: {whole.last_line}"
    if whole.how not in ("exited", "timeout"):
        return f"the command did not train: {whole.last_line}"
    if not whole.step_ns and whole.how == "exited":
        return (
            "no training step was seen; if a checkpoint in the folder shows that training is finished, name its "
            "folder with --checkpoints DIR, so that the drill begins without it"
        )
    if not whole.step_ns:
        return f"no training step was seen in {whole.duration_s:.0f} s: give more time with --budget"
    if not whole.is_whole:
        drilling.limits.append(
            f"the run without interruption was cut off after {len(whole.step_ns)} steps, {WHOLE_RATIO:.0%} of the "
            "budget: later steps were not rehearsed"
        )
    return ""


def _interrupt_all(drilling: _Drilling) -> None:
    """Every signal at every moment, the most informative moments first."""
    draw, request = Random(0), drilling.request
    took_s = 2 * drilling.whole.duration_s
    for aim in AIMS:
        for signal in request.signals:
            chosen = plan_signal(aim, signal, drilling.whole, draw)
            if chosen is None:
                if signal == request.signals[0]:
                    drilling.limits.append(f"no {aim} was seen, so none was interrupted")
                continue
            if drilling.begun_s + request.budget_s - time.monotonic() < took_s:
                drilling.limits.append(f"the budget ended before SIG{signal} in the {aim} was rehearsed")
                if aim in NEEDED_AIMS:
                    drilling.missed.setdefault(signal, []).append(aim)
                continue
            begun_s = time.monotonic()
            drilling.emit(f"SIG{signal}: {aim}")
            pair = _interrupt(drilling, chosen)
            took_s = max(took_s, time.monotonic() - begun_s)
            if pair is None:
                drilling.limits.append(f"training ended before SIG{signal} in the {aim} arrived")
                continue
            if aim == "save" and pair.first.name_moment() != "save":
                drilling.limits.append(f"a save was too short for SIG{signal} to hit it")
                drilling.missed.setdefault(signal, []).append(aim)
            drilling.pairs.append(pair)


def _interrupt(drilling: _Drilling, planned: PlannedSignal) -> Interrupted | None:
    """One interruption and the same command again; None where the signal was not sent."""
    whole, grace_s = drilling.whole, drilling.request.grace_s
    limits = TrialLimits(
        steps=None,
        seconds=None,
        timeout_s=60 + 4 * whole.duration_s + grace_s,
        start_s=60 + 4 * whole.duration_s,
        stall_s=60 + whole.duration_s,
    )
    with drilling.open_copy() as copy:
        first = drilling.run(copy, limits, planned)
        if first.sent_ns is None:
            return None
        files = list_checkpoint_files(copy)
        torn, left_over = split_torn(copy, files, drilling.kept)
        is_written = [one for one, changed_ns in files.items() if changed_ns * 1e-9 >= drilling.begun_wall_s]
        again = drilling.run(copy, replace(limits, steps=None if whole.is_whole else RESTART_STEPS))
    return Interrupted(
        signal=planned.signal,
        first=first,
        again=again,
        torn=tuple(torn),
        left_over=tuple(one for one in left_over if one in is_written),
        has_checkpoint=any(one not in torn and one not in left_over for one in is_written),
    )


def _report(drilling: _Drilling, reason: str) -> Drill:
    request, whole, pairs = drilling.request, drilling.whole, drilling.pairs
    undisturbed = describe_undisturbed(whole, pairs, request.grace_s)
    moments = [(pair.signal, judge_moment(undisturbed, pair)) for pair in pairs]
    signals = tuple(
        judge_signal(name, [one for signal, one in moments if signal == name], drilling.missed.get(name, ()))
        for name in request.signals
    )
    runs = (whole, *(run for pair in pairs for run in (pair.first, pair.again)))
    times_s = sorted(span.length_s for run in runs for span in run.saves if span.length_s > 0)
    save_s, step_s = (times_s[-1] if times_s else None), find_step_s(whole) or None
    restarts_s = [(one.step_ns[0] - one.began_ns) * 1e-9 for one in (whole, *(p.again for p in pairs)) if one.step_ns]
    restart_s = median(restarts_s) if restarts_s else None
    grace_s = None if save_s is None else find_notice_s(save_s, step_s or 0.0)
    interval = find_interval(whole)
    best_s = None if save_s is None else daly_interval_s(_quantile(times_s, 0.5), ASSUMED_MTBF_S)
    own_s = interval * step_s if interval is not None and step_s is not None else best_s
    verdict = "cannot tell" if reason else min((one.verdict for one in signals), key=VERDICTS.index)
    return Drill(
        tool_version=__version__,
        verdict=verdict,
        reason=reason or _say_why(signals, verdict),
        command=request.command,
        signals=signals,
        save_seconds=SaveTimes(
            p50=_quantile(times_s, 0.5) if times_s else None,
            p99=_quantile(times_s, 0.99) if times_s else None,
            n=len(times_s),
        ),
        steps_count=len(whole.step_ns),
        is_whole=whole.is_whole,
        repeats=undisturbed.repeats if pairs else UNKNOWN,
        step_s=step_s,
        restart_s=restart_s,
        interval_steps=interval,
        grace_s=grace_s,
        rehearsed_grace_s=request.grace_s,
        interval_s=best_s,
        mtbf_s=ASSUMED_MTBF_S,
        expected_waste_ratio=None
        if own_s is None or save_s is None or restart_s is None
        else waste_ratio(own_s, _quantile(times_s, 0.5), ASSUMED_MTBF_S, restart_s),
        launch="" if save_s is None else f"--save-s {save_s:.2g}",
        took_s=time.monotonic() - drilling.begun_s,
        limits=tuple(drilling.limits),
    )


def _say_why(signals: Sequence[DrillSignal], verdict: str) -> str:
    if verdict == "pass":
        names, moments = ", ".join(f"SIG{one.signal}" for one in signals), sum(len(one.moments) for one in signals)
        return f"it resumed after each of {moments} interruptions by {names}"
    return next(f"SIG{one.signal} {one.reasons[0]}" for one in signals if one.verdict == verdict)


def _quantile(values: Sequence[float], ratio: float) -> float:
    """The nearest rank of sorted values.

    >>> _quantile([1.0, 2.0, 9.0], 0.5), _quantile([1.0, 2.0, 9.0], 0.99)
    (2.0, 9.0)
    """
    return values[max(0, math.ceil(ratio * len(values)) - 1)]
