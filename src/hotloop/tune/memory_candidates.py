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
NEEDS_RANKS = ("fsdp2", "zero-optimizer")
NEEDS_ACCELERATOR = ("activation-offload", "expandable-segments", "optimizer-state-offload")
FOR_SPEED = "not tried: it is for speed, and the goal is memory"


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
    varied = {technique for _, technique, _ in VARIANTS}
    rows = [row for row in VARIANTS if row[1] in set(techniques)]
    rows += [
        (one.id, one.id, {})
        for one in techniques.values()
        if (RULE in one.treats or one.id in ALSO) and one.id not in varied
    ]
    found = []
    for name, technique, settings in rows:
        if goal != MEMORY and any(one.id == name for one in given):
            continue
        one = _make(name, techniques[technique], settings, check)
        if technique in NEEDS_RANKS and rank_count == 1:
            one = replace(one, why_not="not applicable: there is one rank")
        elif technique in NEEDS_ACCELERATOR and not has_accelerator:
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
