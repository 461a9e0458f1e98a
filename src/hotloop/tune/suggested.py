"""Candidates and a suggester -> combinations tried once each, and the most promising ones proven like any other.

The search looks at one pair per combination, which is a hint and no proof. What promises most is proven with processes
of its own: a pair that was looked at to choose would make the chosen one look better than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import StrategyError, chain
from hotloop.core.tuning import TrialVerdict

from . import goals, statistics
from .quality import ORDER
from .search import Candidate, Check
from .tuner import (
    Arm,
    Campaign,
    add_pair,
    compare_arm,
    end_arm,
    run_baseline,
    run_candidate,
    run_references,
    run_rounds,
)

SEARCH_RATIO = 0.5
"""Share of the budget for looking; the rest is for the proof."""
PROVEN_COUNT = 2
MOST_SUGGESTIONS = 200
LOOKED = "tried once in the search; others had better results"
OFF = "off"


class Suggester(Protocol):
    """Names for every group of candidates which one to take (or OFF), and learns what came of it."""

    def suggest(self) -> dict[str, str]: ...

    def record(self, ratio: float | None) -> None:
        """The ratio by the goal of what was asked last; None when it failed or could not be run."""
        ...


def group_candidates(candidates: Sequence[Candidate]) -> dict[str, tuple[str, ...]]:
    """Technique -> the ids of its candidates, of which at most one is taken; OFF first."""
    groups: dict[str, tuple[str, ...]] = {}
    for one in candidates:
        if not one.why_not:
            technique = one.strategy.choices[0].technique
            groups[technique] = (*groups.get(technique, (OFF,)), one.id)
    return groups


def make_optuna(groups: dict[str, tuple[str, ...]]) -> Suggester:
    """Optuna's own choice of sampler over the groups, always with the same seed. Raises UsageError without optuna."""
    import importlib

    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError as error:
        raise UsageError(
            "--search optuna needs optuna, which is not installed; run: pip install 'hotloop[optuna]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(dict.fromkeys(groups, OFF))  # what nothing changes is known: it is 1
    return _Optuna(optuna, study, groups)


class _Optuna:
    def __init__(self, optuna: Any, study: Any, groups: dict[str, tuple[str, ...]]) -> None:
        self._failed = optuna.trial.TrialState.FAIL
        self._study, self._groups, self._trial = study, groups, None

    def suggest(self) -> dict[str, str]:
        self._trial = trial = self._study.ask()
        return {name: trial.suggest_categorical(name, ids) for name, ids in self._groups.items()}

    def record(self, ratio: float | None) -> None:
        if ratio is None:
            self._study.tell(self._trial, state=self._failed)
        else:
            self._study.tell(self._trial, ratio)


def tune_suggested(
    campaign: Campaign, candidates: Sequence[Candidate], observed: Sequence[Measurement], suggester: Suggester
) -> None:
    """Look at combinations while SEARCH_RATIO of the budget lasts, then prove the best ones."""
    campaign.arms = [Arm(candidate=one) for one in candidates if one.why_not]
    for arm in campaign.arms:
        end_arm(campaign, arm, TrialVerdict.REJECTED, arm.candidate.why_not)
    known = {one.id: one for one in candidates if not one.why_not}
    if not known:
        return
    campaign.level = statistics.DECISION_LEVEL / PROVEN_COUNT
    run_references(campaign, observed)
    now_s = campaign.clock_s()
    until_s = now_s + SEARCH_RATIO * (campaign.budget.search_until_s - now_s)
    looked = _look(campaign, known, suggester, until_s)
    promising = sorted(
        (arm for arm in looked if arm.ended is None and _ratio(campaign, arm) > 1.0),
        key=lambda arm: -_ratio(campaign, arm),
    )[:PROVEN_COUNT]
    for arm in looked:
        arm.left_out = LOOKED
    chosen = []
    for arm in promising:
        campaign.arms.remove(arm)
        chosen.append(Arm(candidate=arm.candidate, run_count=arm.run_count))
    campaign.arms.extend(chosen)
    if chosen:
        campaign.emit("candidates to prove: " + "; ".join(arm.candidate.id for arm in chosen))
        run_rounds(campaign, chosen, campaign.budget.search_until_s)


def _look(campaign: Campaign, known: dict[str, Candidate], suggester: Suggester, until_s: float) -> list[Arm]:
    """One pair of every combination that is suggested, in turn first and second."""
    seen: dict[str, Arm] = {}
    dead: set[str] = set()
    for number in range(MOST_SUGGESTIONS):
        if campaign.clock_s() + 2 * campaign.process_s > until_s:
            break
        asked = suggester.suggest()
        taken = [known[name] for name in asked.values() if name != OFF and name not in dead]
        if not taken:
            suggester.record(1.0)
            continue
        candidate = _join(taken, campaign.check)
        if candidate is None:
            suggester.record(None)
            continue
        arm = seen.get(candidate.id)
        if arm is None:
            arm = seen[candidate.id] = Arm(candidate=candidate, is_look=True)
            campaign.arms.append(arm)
            _run_pair(campaign, arm, is_baseline_first=number % 2 == 0)
            if arm.ended is not None:
                dead |= _find_dead(arm, taken)
        suggester.record(_ratio(campaign, arm) if arm.ended is None and arm.own else None)
    return list(seen.values())


def _run_pair(campaign: Campaign, arm: Arm, *, is_baseline_first: bool) -> None:
    base = run_baseline(campaign) if is_baseline_first else None
    own = run_candidate(campaign, arm)
    if own is None:
        return
    add_pair(arm, base or run_baseline(campaign), own)
    if arm.own:
        campaign.emit(f"{arm.candidate.id}: {_ratio(campaign, arm):.2f}x in one pair")


def _find_dead(arm: Arm, taken: Sequence[Candidate]) -> set[str]:
    """The candidates that changed nothing: they are not taken again, and what is beside them gets its chance."""
    if arm.unapplied is None or arm.quality is not None:
        return set()
    return {one.id for one in taken if one.strategy.choices[0].technique == arm.unapplied.technique}


def _join(taken: Sequence[Candidate], check: Check) -> Candidate | None:
    strategy = chain(*(one.strategy for one in taken))
    try:
        check(strategy)
    except StrategyError:
        return None
    if len(taken) == 1:
        return taken[0]
    return replace(
        taken[0],
        id=" + ".join(sorted(one.id for one in taken)),
        strategy=strategy,
        forecast=None,
        rules=tuple(dict.fromkeys(rule for one in taken for rule in one.rules)),
        numerics=max((one.numerics for one in taken), key=ORDER.index),
    )


def _ratio(campaign: Campaign, arm: Arm) -> float:
    goal = goals.SPEED if campaign.goal == goals.PARETO else campaign.goal
    return compare_arm(campaign, arm, goal).speedup_ratio or 0.0
