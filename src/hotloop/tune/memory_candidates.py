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
VARIANTS: tuple[tuple[str, str, Mapping[str, Value]], ...] = (
    ("activation-checkpointing", "activation-checkpointing", {}),
    ("activation-checkpointing (keeps matmuls)", "activation-checkpointing", {"policy": "matmuls"}),
    ("activation-checkpointing (half)", "activation-checkpointing", {"budget": 0.5}),
    ("accumulation", "accumulation", {"micro_batches": 2}),
)
"""Id, technique and settings. A batch in parts keeps the effective batch: what it does to memory is what is asked."""
ALSO = ("optimizer-in-backward", "zero-grad-to-none", "bf16-autocast")
"""They treat other faults, and save memory besides: gradients that are freed early, activations of half the size."""


def add_memory_candidates(
    candidates: Iterable[Candidate], techniques: Mapping[str, Technique], check: Check, *, goal: str
) -> tuple[Candidate, ...]:
    """What saves memory, after what findings ask for; under the goal memory before it.

    Forecasts are of time: under the goal memory none prunes, and what a forecast of time had left out is tried.
    """
    given = tuple(candidates)
    if goal == MEMORY:
        given = tuple(_without_forecast(one, check) for one in given)
    taken = {one.id for one in given}
    varied = {technique for _, technique, _ in VARIANTS}
    rows = [row for row in VARIANTS if row[1] in set(techniques)]
    rows += [
        (one.id, one.id, {})
        for one in techniques.values()
        if (RULE in one.treats or one.id in ALSO) and one.id not in varied
    ]
    found = tuple(
        _make(name, techniques[technique], settings, check) for name, technique, settings in rows if name not in taken
    )
    return (*found, *given) if goal == MEMORY else (*given, *found)


def _without_forecast(one: Candidate, check: Check) -> Candidate:
    if not one.why_not.startswith("not tried: its forecast"):
        return replace(one, forecast=None)
    return replace(one, forecast=None, why_not=_problem(one.strategy, check))


def _make(name: str, technique: Technique, settings: Mapping[str, Value], check: Check) -> Candidate:
    strategy = Strategy(choices=(Choice(technique=technique.id, settings=settings),))
    why_not = _problem(strategy, check)
    if technique.safety is Safety.SHOW:
        why_not = "only its reader may apply it: hotloop shows it and does not try it"
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
