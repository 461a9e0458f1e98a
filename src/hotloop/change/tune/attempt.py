"""A study that was observed -> candidates tried in its campaign, and what is worth keeping run as a patched source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.report import Report
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Technique
from hotloop.core.tuning import PatchCheck, TrialVerdict

from . import goals, statistics
from .goals import MEMORY
from .patch import CANNOT_TELL, NOT_CHECKED, NOT_REPRODUCED, REPRODUCED, Patch, make_patch
from .referee import SideFailed, run_pairs
from .search import Candidate, find_candidates, list_memory_candidates
from .study import CodeChanged, Progress, Request, Study, TuneError
from .trials import LOST, OK, Bench, Budget, Ran, pick_unit, run_trial
from .tuner import (
    Arm,
    BaselineFailed,
    Campaign,
    best_arm,
    end_early,
    go_on,
    judge,
    judge_numbers,
    judge_pairs,
    numerics_of,
    run_unchanged,
    tune_candidates,
)
from .workspace import changed_code, changed_files

MOST_PAIRS = 8

RunPatched = Callable[[int], Ran]
"""The number of a process -> how the patched copy went in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The goal of the patch: the strategy's comparison, and whether the patch holds all of the strategy.

    With ``is_one_time`` all steps are compared, as those of the strategy were.
    """

    strategy: statistics.PairComparison
    is_whole: bool
    is_one_time: bool = False


def describe_unchecked(patch: Patch, names: tuple[str, ...], reason: str) -> PatchCheck:
    """The state of a patch before any process of it ran; ``names`` are its files."""
    inside = {technique for change in patch.files for technique in change.techniques}
    return PatchCheck(
        status=NOT_CHECKED,
        reason=reason,
        techniques=tuple(sorted(inside)),
        files=names,
        left_out=tuple(sorted({one.technique for one in patch.left_out} - inside)),
    )


def check_patch(campaign: Campaign, arm: Arm, run_patched: RunPatched, before: PatchCheck) -> PatchCheck:
    """Pairs of the unchanged command and its patched copy, until they decide or the time is over."""
    strategy = judge(campaign, arm)
    wanted = Wanted(strategy=strategy, is_whole=not before.left_out, is_one_time=arm.candidate.is_one_time)
    found = replace(before, strategy_ratio=strategy.speedup_ratio)
    baseline: list[Measurement] = []
    own: list[Measurement] = []
    numerics = numerics_of(arm.candidate, arm.own[-1:])
    until_s, process_s = campaign.budget.until_s, campaign.process_s

    def run(side: str, number: int) -> Ran:
        return run_patched(number) if side == "B" else run_unchanged(campaign)

    try:
        pairs = run_pairs(run, MOST_PAIRS, until_s=until_s, process_s=process_s, clock_s=campaign.clock_s)
        for unchanged, patched in pairs:
            baseline.append(unchanged)
            own.append(patched)
            found = _judge(campaign, found, wanted, baseline, own, numerics)
            campaign.emit(f"the patched source: {found.status}, {found.reason}")
            if found.status == NOT_REPRODUCED or _compare(campaign, wanted, baseline, own).decided:
                break
    except BaselineFailed as error:
        return replace(found, status=CANNOT_TELL, reason=str(error))
    except SideFailed as failure:
        status = CANNOT_TELL if failure.ran.ended == LOST else NOT_REPRODUCED
        return replace(found, status=status, reason=f"the patched copy: {failure}")
    if not own:
        return replace(found, reason="the budget ran out before the patched source could be run")
    return found


def _judge(
    campaign: Campaign,
    before: PatchCheck,
    wanted: Wanted,
    baseline: list[Measurement],
    own: list[Measurement],
    numerics: Numerics,
) -> PatchCheck:
    """The verdict of the pairs so far on the gain, and of the last process on the loss."""
    found = _compare(campaign, wanted, baseline, own)
    guarded = judge_numbers(campaign, own[-1], numerics)
    status, reason = judge_gain(found, wanted)
    if guarded.quality.status == "rejected":
        status, reason = NOT_REPRODUCED, guarded.quality.reason
    elif guarded.quality.status == "unknown" and status == REPRODUCED:
        status, reason = CANNOT_TELL, f"its loss cannot be judged: {guarded.quality.reason}"
    return replace(
        before,
        status=status,
        reason=reason,
        n=found.n,
        unit="step" if wanted.is_one_time else pick_unit([*baseline, *own]),
        speedup_ratio=found.speedup_ratio,
        low_ratio=found.low_ratio,
        high_ratio=found.high_ratio,
        quality=guarded.summary,
    )


def _compare(
    campaign: Campaign, wanted: Wanted, baseline: list[Measurement], own: list[Measurement]
) -> statistics.PairComparison:
    level, memory = statistics.DECISION_LEVEL, campaign.goal == goals.MEMORY
    return judge_pairs(campaign, baseline, own, level, memory=memory, is_one_time=wanted.is_one_time)


def judge_gain(found: statistics.PairComparison, wanted: Wanted) -> tuple[str, str]:
    """Status and reason of the patched copy's gain next to the strategy's."""
    if found.low_ratio is None or found.high_ratio is None:
        return CANNOT_TELL, found.reason
    if found.verdict is TrialVerdict.SLOWER or (found.decided and found.verdict is not TrialVerdict.FASTER):
        return NOT_REPRODUCED, found.reason
    least = wanted.strategy.low_ratio
    if wanted.is_whole and least is not None and found.high_ratio < least:
        return NOT_REPRODUCED, f"it gains less than the strategy (at least {least:.3f}x): {found.reason}"
    if found.verdict is not TrialVerdict.FASTER:
        return CANNOT_TELL, found.reason
    part = "" if wanted.is_whole else "; the patch contains only part of the strategy"
    return REPRODUCED, found.reason + part


OBSERVED = "baseline-observed"
"""Name of the first process, which everything is recorded of that a report needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningAttempt:
    """The results of observing the baseline, for those who run trials."""

    study: Study
    campaign: Campaign
    observed: Measurement
    report: Report
    techniques: Mapping[str, Technique]


def try_findings(attempt: TuningAttempt) -> None:
    """The fixes of the findings; under the goal memory what saves memory."""
    candidates = _choose_candidates(attempt)
    attempt.campaign.emit(_describe_plan(candidates, attempt.study.limits.steps))
    tune_candidates(attempt.campaign, candidates, [attempt.observed])


def observe_baseline(bench: Bench, budget: Budget, progress: Progress) -> tuple[Ran, Measurement]:
    """The first process of the command. Raises TuneError where it cannot be tuned."""
    ran = run_trial(bench, Strategy(), budget.observation, OBSERVED)
    if ran.ended != OK or ran.measured is None:
        raise TuneError(
            f"the command cannot be tuned because its first run failed: {ran.ended}, {ran.reason}; "
            + "".join(f"{warning}; " for warning in progress.warnings)
            + f"see its output in {bench.folder / 'trials' / OBSERVED}"
        )
    return ran, ran.measured


def run_attempt(attempt: TuningAttempt, request: Request, progress: Progress) -> None:
    """The search, and what its outcome is worth as a change of the source."""
    campaign = attempt.campaign
    try:
        try_findings(attempt)
        if best_arm(campaign) is None:
            go_on(campaign, campaign.budget.until_s)  # no patch to check so far: its time goes to the proof
    except (BaselineFailed, CodeChanged) as error:
        stop_early(request, progress, error)
    check_source(request, progress, attempt.study)


def stop_early(request: Request, progress: Progress, error: Exception) -> None:
    """Nothing more can be run, and what was compared is reported. Raises TuneError where that is nothing."""
    why = str(error)
    if isinstance(error, BaselineFailed):
        why += f"; see the outputs in {request.folder / 'trials'}"
    if progress.campaign is None or not end_early(progress.campaign, str(error)):
        raise TuneError(why) from error
    progress.warnings += (f"ended early: {why}",)
    progress.campaign.emit(f"ended early: {why}")


def check_source(request: Request, progress: Progress, study: Study) -> None:
    """Make the patch of what was proven and compare the patched copy with the unchanged one, while there is time."""
    campaign, plan = progress.campaign, study.bench.plan
    assert campaign is not None
    best = best_arm(campaign)
    patch = progress.patch = make_proven_patch(request, progress)
    if best is None or not patch.files:
        return
    names = _name_files(patch, request)
    changed = [*changed_files(plan, names), *(str(one.path) for one in changed_code(plan))]
    if changed:
        why = f"{', '.join(changed)} changed since the tuning began, so the patch does not match the measured source"
        progress.check = describe_unchecked(patch, names, why)
        return
    progress.check = describe_unchecked(patch, names, "interrupted before the patched source was run")
    campaign.emit("running the patched source without a strategy")
    after = {name: change.after for name, change in zip(names, patch.files, strict=True)}
    progress.check = check_patch(campaign, best, partial(study.run_patched, after), progress.check)


def settle_patch(progress: Progress, request: Request) -> Patch:
    """The patch that was made, else one of what was proven. What was never run is marked so in ``progress``."""
    patch = progress.patch = progress.patch or make_proven_patch(request, progress)
    if progress.check is None and patch.files:
        why = "the patched source was not run: review it before you apply it"
        progress.check = describe_unchecked(patch, _name_files(patch, request), why)
    return patch


def make_proven_patch(request: Request, progress: Progress) -> Patch:
    """The proven strategy's changes in its trials, as a change of the user's source (empty without a proof)."""
    best = None if progress.campaign is None else best_arm(progress.campaign)
    if best is None or not best.own:
        return Patch(diff="", files=(), left_out=())
    script = next((request.cwd / word for word in request.command if word.endswith(".py")), None)
    return make_patch(best.own[-1].applied, request.cwd, request.techniques, script=script)


def _name_files(patch: Patch, request: Request) -> tuple[str, ...]:
    root = request.cwd.resolve()
    return tuple(change.path.relative_to(root).as_posix() for change in patch.files)


def _choose_candidates(attempt: TuningAttempt) -> tuple[Candidate, ...]:
    campaign = attempt.campaign
    candidates = find_candidates(
        attempt.report.findings, attempt.techniques, campaign.check, attempt.study.bench.plan.source
    )
    if campaign.goal != MEMORY:
        return candidates
    return list_memory_candidates(
        candidates,
        attempt.techniques,
        campaign.check,
        rank_count=attempt.observed.rank_count or 1,
    )


def _describe_plan(candidates: Sequence[Candidate], steps: int | None) -> str:
    """The names of the candidates to try, for the person who waits."""
    names = [one.id for one in candidates if not one.why_not]
    if not names and candidates:
        return "; ".join(f"{one.id}: {one.why_not}" for one in candidates)
    if not names:
        return "no finding in the baseline suggests a technique that can be tried"
    return f"candidates, in fresh processes of {steps} steps each: {', '.join(names)}"
