"""Builds of the file as it is -> what each step costs -> the forecast seconds of a changed file.

A build takes what passes around the steps, and for each step what it took to run it where an edit makes the builder run
it again, or what it took to find it in the cache. All of that was measured on the file as it is; steps of a changed
file are recognised by their text (Step.key).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from hotloop.core.dockerfile import INSTRUCTIONS

from .builder import Build, BuiltStep
from .program import ProgramLine
from .recipe import BuildRecipe, BuildStep, list_rerun

FILE_BYTES = 32 << 10
"""What one more file costs a COPY, as bytes of a large one. The share only weighs files against bytes."""
METADATA = frozenset(INSTRUCTIONS) - {"FROM", "RUN", "COPY", "ADD", "WORKDIR"}
"""BuildKit has no step for these."""
FETCHING = re.compile(
    r"\s*(Downloading|Building wheel for|Installing build dependencies|Getting requirements to build|"
    r"Preparing metadata)"
)
"""What pip says before work that a filled cache saves."""
SAME_WORK = re.compile(r"\s*(Building wheel for .*finished|.*━|\s+error:)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What a step took, median over its builds; None where it never ran, or was never found in the cache.

    ``fetching_ns`` is the part of running it that a filled cache of packages saves.
    """

    run_ns: float | None = None
    cached_ns: float | None = None
    fetching_ns: float = 0.0
    weight: float = 0.0
    """Of the files that it copies, in bytes."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """``copy`` is the cost of copying one small file, ``around_ns`` what passes outside of steps, by scenario."""

    steps: Mapping[str, StepCost]
    copy: StepCost
    around_ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A build of the file as it is, in one scenario."""

    scenario: str
    build: Build


def pair_steps(recipe: BuildRecipe, build: Build) -> list[tuple[BuildStep, BuiltStep]]:
    """Each built step with its instruction. Steps of triggers that a base image brings have none, and are left out."""
    pairs: list[tuple[BuildStep, BuiltStep]] = []
    numbers = sorted({one.stage for one in build.steps})
    stages = recipe.stages
    for number, steps in zip(numbers, stages[len(stages) - len(numbers) :], strict=False):
        left = list(steps)
        for one in (one for one in build.steps if one.stage == number):
            name = one.text.split(None, 1)[0].upper()
            while left and left[0].instruction.name != name and left[0].instruction.name in METADATA:
                left.pop(0)
            if left and left[0].instruction.name == name:
                pairs.append((left.pop(0), one))
    return pairs


def weigh(step: BuildStep, recipe: BuildRecipe) -> float:
    return float(sum(recipe.admitted.get(path, 0) + FILE_BYTES for path in step.reads))


def learn_costs(recipe: BuildRecipe, builds: Sequence[Observed], copies: Sequence[tuple[float, float]]) -> Costs:
    """``copies``: (run_ns, cached_ns) of copying one small file."""
    ran: dict[str, list[float]] = {}
    cached: dict[str, list[float]] = {}
    fetching: dict[str, list[float]] = {}
    around: dict[str, list[float]] = {}
    weights = {key: weigh(step, recipe) for key, step in number_keys(recipe.steps)}
    for observed in builds:
        around.setdefault(observed.scenario, []).append(observed.build.around_ns)
        pairs = pair_steps(recipe, observed.build)
        keys = {id(step): key for key, step in number_keys(recipe.steps)}
        for step, one in pairs:
            key = keys[id(step)]
            (cached if one.is_cached else ran).setdefault(key, []).append(one.duration_ns)
            if not one.is_cached:
                fetching.setdefault(key, []).append(measure_fetching(one.lines, one.duration_ns))
    return Costs(
        steps={
            key: StepCost(
                run_ns=_median(ran.get(key)),
                cached_ns=_median(cached.get(key)),
                fetching_ns=_median(fetching.get(key)) or 0.0,
                weight=weights[key],
            )
            for key in {*ran, *cached}
        },
        copy=StepCost(run_ns=_median([one for one, _ in copies]), cached_ns=_median([one for _, one in copies])),
        around_ns={scenario: median(values) for scenario, values in around.items()},
    )


def _median(values: Sequence[float] | None) -> float | None:
    return median(values) if values else None


def number_keys(steps: Iterable[BuildStep]) -> list[tuple[str, BuildStep]]:
    """Steps with a key each, equal texts told apart by their order."""
    seen: dict[str, int] = {}
    found = []
    for step in steps:
        key = f"{step.stage.name or step.stage.index} {step.key}"
        seen[key] = seen.get(key, 0) + 1
        found.append((f"{key} #{seen[key]}", step))
    return found


def measure_fetching(lines: Sequence[ProgramLine], duration_ns: int) -> float:
    """Time in which pip downloads or builds packages, from when its lines came."""
    told = [line for line in lines if line.text.strip() and not SAME_WORK.match(line.text)]
    spans = pairwise([*told, ProgramLine(duration_ns, "")])
    return float(sum(after.at_ns - one.at_ns for one, after in spans if FETCHING.match(one.text)))


def forecast_ns(
    changed: BuildRecipe, before: BuildRecipe, costs: Costs, scenario: str, edited: str | None
) -> int | None:
    """What a build of the changed recipe should take, before it was built; None where a step's seconds are unknown."""
    rerun = list_rerun(changed, edited)
    around_ns = costs.around_ns.get(scenario)
    if around_ns is None:
        return None
    mounts = {key: step.cache_mounts for key, step in number_keys(before.steps)}
    total_ns = around_ns
    for key, step in number_keys(changed.steps):
        runs = (step.stage.index, step.position) in rerun and step.instruction.name != "FROM"
        cost = costs.steps.get(key)
        if cost is None:
            if step.instruction.name in METADATA:
                continue
            if not step.takes_context:
                return None
            cost = costs.copy
        elif step.takes_context and cost.weight:
            cost = _scale(cost, costs.copy, weigh(step, changed) / cost.weight)
        if runs and edited is not None and step.cache_mounts - mounts.get(key, frozenset()):
            cost = StepCost(run_ns=None if cost.run_ns is None else cost.run_ns - cost.fetching_ns)
        part_ns = cost.run_ns if runs else cost.cached_ns if edited is not None else cost.cached_ns or cost.run_ns
        if part_ns is None:
            return None
        total_ns += part_ns
    return round(total_ns)


def _scale(cost: StepCost, least: StepCost, ratio: float) -> StepCost:
    """The cost of copying this share of the files: what one small file costs stays."""

    def part(whole_ns: float | None, least_ns: float | None) -> float | None:
        if whole_ns is None or least_ns is None:
            return whole_ns
        return min(whole_ns, least_ns) + max(0.0, whole_ns - least_ns) * ratio

    return StepCost(run_ns=part(cost.run_ns, least.run_ns), cached_ns=part(cost.cached_ns, least.cached_ns))
