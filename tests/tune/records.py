"""Tunings without processes: what a process measured, and machines that make it up."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop.change.tune.search import Candidate
from hotloop.change.tune.trials import OK, Budget, Ran
from hotloop.change.tune.tuner import Campaign, RunArm, best_arm, describe_trials, tune_candidates
from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Numerics, Value, Where
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.tuning import Trial

LOSSES = tuple(2.0 - 0.01 * i for i in range(40))


def applied(
    technique: str,
    status: str = "applied",
    detail: str = "",
    numerics: str | None = "exact",
    *,
    target: str | None = None,
    explicit: str | None = None,
    where: Where | None = None,
    values: Mapping[str, Value] | None = None,
) -> AppliedTechnique:
    """What a technique says that it did in a process of a trial."""
    return AppliedTechnique(
        technique=technique,
        settings={},
        status=status,
        detail=detail,
        target=target,
        where=where,
        numerics=numerics,
        explicit=explicit,
        values=values or {},
    )


def measurement(step_ns: float = 1e6, names: tuple[str, ...] = (), **changes: Any) -> Measurement:
    """A process in which these techniques were applied."""
    one = Measurement(
        step_ns=step_ns,
        steady_count=30,
        samples_per_step=8.0,
        tokens_per_step=None,
        peak_bytes=1000,
        one_time_ns=50,
        breakdown={"forward": step_ns},
        losses=LOSSES,
        applied=tuple(applied(name, numerics="reordered") for name in names),
    )
    return replace(one, **changes)


def ok(measured: Measurement) -> Ran:
    return Ran(ended=OK, reason="", duration_s=10.0, measured=measured)


def failed(kind: str) -> Ran:
    return Ran(ended=kind, reason="why", duration_s=1.0, measured=None)


def candidate(name: str, **changes: Any) -> Candidate:
    strategy = Strategy(choices=(Choice(technique=name),))
    one = Candidate(id=name, strategy=strategy, forecast=None, rules=("r",), numerics=Numerics.REORDERED)
    return replace(one, **changes)


class Machine:
    """Processes without a computer: ten seconds each of a clock of its own, or as long as one of their techniques."""

    def __init__(self, durations_s: Mapping[str, float] | None = None) -> None:
        self.now_s = 0.0
        self.durations_s = durations_s or {}
        self.ran: list[tuple[str, ...]] = []
        self.random = random.Random(3)

    def run(self, strategy: Strategy, number: int) -> Ran:
        names = tuple(choice.technique for choice in strategy.choices)
        self.now_s += max((self.durations_s.get(name, 10.0) for name in names), default=10.0)
        self.ran.append(names)
        return self.make(names)

    def make(self, names: tuple[str, ...]) -> Ran:
        """How a process with these techniques went."""
        raise NotImplementedError

    def campaign(
        self, goal: str = "speed", budget_s: float = 1e5, check: Callable[[Strategy], Strategy] = lambda s: s
    ) -> Campaign:
        return Campaign(
            goal=goal,
            check=check,
            run=self.run,
            clock_s=lambda: self.now_s,
            budget=Budget(whole_s=budget_s),
            emit=lambda text: None,
        )


class FakeMachine(Machine):
    """Multiplies the step time by each technique's factor, unless a technique ends the process in its own way."""

    def __init__(
        self,
        factors: Mapping[str, float],
        special: Mapping[str, Ran] | None = None,
        durations_s: Mapping[str, float] | None = None,
        spread: float = 0.01,
    ) -> None:
        super().__init__(durations_s)
        self.factors, self.special, self.spread = factors, special or {}, spread

    def make(self, names: tuple[str, ...]) -> Ran:
        for name in names:
            if name in self.special:
                return self.special[name]
        step_ns = 1e6 * self.random.lognormvariate(0, self.spread)
        for name in names:
            step_ns *= self.factors[name]
        return ok(measurement(step_ns, names))


def tune(
    machine: Machine,
    candidates: Sequence[Candidate],
    *,
    observed: Sequence[Measurement] | None = None,
    run: RunArm | None = None,
    **settings: Any,
) -> tuple[Campaign, dict[str, Trial]]:
    """The campaign after all candidates, and its trials by name."""
    campaign = machine.campaign(**settings)
    campaign.run = run or machine.run
    tune_candidates(campaign, candidates, [measurement()] if observed is None else observed)
    return campaign, trials_of(campaign)


def trials_of(campaign: Campaign) -> dict[str, Trial]:
    return {trial.id: trial for trial in describe_trials(campaign)}


def best_id(campaign: Campaign) -> str | None:
    best = best_arm(campaign)
    return None if best is None else best.candidate.id
