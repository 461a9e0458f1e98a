"""Candidates of a speed tuning -> the same with what saves memory: recomputation in its forms, and smaller batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.core.techniques import Technique

from .goals import MEMORY
from .search import Candidate, Check

RULE = "memory-pressure"
FOR_SPEED = "not tried: it improves speed, but the goal is memory"


def add_memory_candidates(
    candidates: Iterable[Candidate],
    techniques: Mapping[str, Technique],
    check: Check,
    *,
    goal: str,
    rank_count: int,
    has_accelerator: bool,
) -> tuple[Candidate, ...]:
    """What saves memory, after what findings ask for; under the goal memory in its place.

    Forecasts are of time: under the goal memory none prunes. What can change nothing here is told without a process.
    """
    given = tuple(candidates)
    saving = [(one, one.memory) for one in techniques.values() if one.memory is not None]
    found = []
    for technique, memory in sorted(saving, key=lambda pair: pair[1].turn):
        for form in memory.forms:
            name = f"{technique.id} ({form.label})" if form.label else technique.id
            if goal != MEMORY and any(one.id == name for one in given):
                continue
            one = _make(name, technique, form.settings, check)
            if memory.needs == "ranks" and rank_count == 1:
                one = replace(one, why_not="not applicable: there is only one rank")
            elif memory.needs == "an accelerator" and not has_accelerator:
                one = replace(one, why_not="not applicable: the training ran on the CPU")
            found.append(one)
    if goal != MEMORY:
        return (*given, *found)
    taken = {one.id for one in found}
    rest = tuple(replace(one, forecast=None, why_not=one.why_not or FOR_SPEED) for one in given if one.id not in taken)
    return (*found, *rest)


def _make(name: str, technique: Technique, settings: Mapping[str, Value], check: Check) -> Candidate:
    strategy = Strategy(choices=(Choice(technique=technique.id, settings=settings),))
    why_not = _problem(strategy, check)
    if technique.safety is Safety.SHOW:
        why_not = "not tried: only you can decide to apply it"
    return Candidate(
        id=name,
        strategy=strategy,
        forecast=None,
        rules=(RULE,),
        numerics=Numerics(technique.numerics),
        why_not=why_not,
    )


def _problem(strategy: Strategy, check: Check) -> str:
    try:
        check(strategy)
    except StrategyError as error:
        return str(error)
    return ""
