"""Analysis -> recompilation: torch.compile keeps compiling after training has settled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, variance

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Severity, Value, saving_of_removal, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import (
    MATERIAL_RATIO,
    MATERIAL_RUN_RATIO,
    NOISE_MULTIPLE,
    format_share,
    format_time,
    is_material,
    known_mean,
    known_places,
    run_ratio,
    settling_column,
    severity_once,
)

SHAPE_WORDS = ("size mismatch", "shape", "stride", "size of", "dynamic")
ORDER = tuple(Severity)

FEWEST_RECOMPILES = 2
"""A single one is the normal cost of a last batch or a first validation."""
FEWEST_COMPARED_STEPS = 10
"""On either side of the limit."""


@rule("recompilation", "torch.compile recompiles during training")
def judge_recompilation(analysis: Analysis) -> Finding | None:
    """
    ## What it does
    Finds steps in which torch.compile recompiled, and reports the guard that failed. If a function reached the
    recompile limit, reports the step from which on the function runs eagerly. If there are enough earlier compiled
    steps for a comparison, also reports how much slower each step is from then on.

    ## Why it costs
    Compiled code is specialized for shapes, types and values. When one of them changes, the step stops and compiles,
    for seconds. After eight recompilations (`torch._dynamo.config.recompile_limit`), torch gives up on the function:
    from then on, every variant that is not compiled yet runs eagerly.

    ## How to recognize it
    The rule measures how long steady steps spend compiling, and forecasts the same loss for every step. Two or more
    recompilations before the steps are steady count as a share of the full run (if they take at least 5 % of it). You
    pay this cost once per start: no saving is forecast, and the severity is one level lower than if the same share were
    lost in every step. Compilation in the first step is the price of using torch.compile and does not count. The failed
    guard shows what changed: nearly always the length or size of a batch, or a Python number.

    ## What to do
    Keep shapes constant: `drop_last=True` for the last batch of an epoch, padding to a few bucket lengths. Or mark the
    sizes that vary: `torch.compile(model, dynamic=True)`, `torch._dynamo.mark_dynamic(x, 1)`. Turn Python numbers that
    change (a step counter, a schedule) into tensors.

    ## When it is wrong
    If the set of shapes is small, compiling stops once all shapes have been seen, so its cost matters less in a longer
    run. The evidence shows whether compiling went on in the second half. The share refers to this recording only: a
    large share of thirty steps may be a small share of a day of training.
    """
    rank = analysis.lead
    if not rank.compile.used:
        return None
    steady, start = _judge_steady(analysis), _judge_start(analysis)
    if steady is not None and start is not None:
        # Both have the same cause, so the more severe finding reports both.
        grave, other = sorted((steady, start), key=lambda found: ORDER.index(found.severity))
        name = "compile_ns_before_steady" if other is start else "compile_ns_per_steady_step"
        steady, start = replace(grave, evidence={**grave.evidence, name: other.cost_ns}), None
    return _add_limit(analysis, steady or start)


def _judge_steady(analysis: Analysis) -> Finding | None:
    rank = analysis.lead
    compile_ns = sum(known_mean(r, "compile_ns") or 0.0 for r in analysis.ranks) / len(analysis.ranks)
    cost_ratio = min(1.0, compile_ns / analysis.step_ns)
    if not is_material(analysis, cost_ratio, judged_fields=("compile_ns",)):
        return None
    column = [max(0, value) for value in rank.columns.get("compile_ns", ())]
    late_ns = sum(column[len(column) // 2 :])
    goes_on = not column or late_ns > 0.1 * sum(column)
    compiles = known_mean(rank, "compiles")
    evidence: dict[str, Value] = {
        "compile_ns_per_step": round(compile_ns),
        "compiles_in_steady_steps": round((compiles or 0.0) * rank.steady_count),
        "recompiles": rank.compile.recompiles,
        "reasons": [reason for reason, _ in rank.compile.recompile_reasons[:3]],
        "goes_on_in_second_half": goes_on,
    }
    return replace(
        _finding(analysis, f"torch.compile recompiles during training: {cost_ratio:.0%} of the time", evidence),
        cost_ns=round(compile_ns),
        time_ns=_by_phase(analysis, compile_ns),
        cost_ratio=cost_ratio,
        # In a training that is twice as long and compiles no more, half of the share is lost.
        saving=saving_of_removal(cost_ratio, sure_ratio=cost_ratio if goes_on else cost_ratio / 2),
    )


def _judge_start(analysis: Analysis) -> Finding | None:
    """Recompilations in the warm-up steps after the first step, whose compilation is simply the price of compiling."""
    rank = analysis.lead
    compile_ns = sum(settling_column(rank, "compile_ns"))
    cost_ratio, count = run_ratio(rank, compile_ns), rank.compile.recompiles or 0
    if cost_ratio < MATERIAL_RUN_RATIO or count < FEWEST_RECOMPILES:
        return None
    title = (
        f"torch.compile recompiled {count} times: {format_time(compile_ns)} in the first {rank.warmup_count} steps "
        f"({format_share(cost_ratio)} of this run), a cost you pay once per start"
    )
    evidence: dict[str, Value] = {
        "recompiles": count,
        "steps": rank.warmup_count,
        "reasons": [reason for reason, _ in rank.compile.recompile_reasons[:3]],
    }
    return replace(
        _finding(analysis, title, evidence),
        cost_ns=round(compile_ns),
        cost_ratio=cost_ratio,
        base="run",
        severity_override=severity_once(cost_ratio),
    )


def _add_limit(analysis: Analysis, found: Finding | None) -> Finding | None:
    """The finding, or a new one, extended by what runs eagerly since torch.compile reached its limit."""
    rank = analysis.lead
    facts = rank.compile
    if facts.limit_reason is None:
        return found
    since = "" if facts.limit_step is None else f" from step {facts.limit_step:,} of {rank.steps:,} on"
    lost = f"past the recompile limit, new shapes or values run eagerly{since}"
    evidence: dict[str, Value] = {
        "eager_steps": None if facts.limit_step is None else rank.steps - facts.limit_step,
        "failed_guard": facts.limit_reason,
        "lost_since_ns_per_step": None,
    }
    eager_ns = _eager_loss_ns(rank)
    where = known_places(facts.limit_where, facts.where)
    if eager_ns is not None:
        low_ns, mid_ns, high_ns = eager_ns
        evidence["lost_since_ns_per_step"] = round(mid_ns)
        cost_ratio = min(1.0, mid_ns / rank.step_mean_ns)
        if found is None and cost_ratio >= MATERIAL_RATIO and low_ns > 0:
            return replace(
                _finding(analysis, f"torch.compile gave up: {lost}, {format_time(mid_ns)} slower per step", evidence),
                cost_ns=round(mid_ns),
                cost_ratio=cost_ratio,
                saving=saving_within(
                    cost_ratio, low_ns / rank.step_mean_ns, cost_ratio, high_ns / rank.step_mean_ns, Basis.SIMULATED
                ),
                where=where,
            )
    if found is None:
        return replace(
            _finding(analysis, f"torch.compile gave up: {lost}", evidence),
            where=where,
            severity_override=Severity.LOW,
        )
    return replace(found, title=f"{found.title}; {lost}", evidence={**found.evidence, **evidence})


def _eager_loss_ns(rank: RankAnalysis) -> tuple[float, float, float] | None:
    """How much longer forward and backward take per step since the limit than in compiled steps before: low, middle,
    high (two standard errors). None if too few steps before the limit compiled nothing, or the samples are unknown.

    Both are taken per sample, over the steps that compiled nothing.
    """
    limit = rank.compile.limit_step
    if limit is None:
        return None
    before: list[float] = []
    since: list[float] = []
    for columns, first in ((rank.warmup_columns, 0), (rank.columns, rank.warmup_count)):
        names = ("forward_ns", "backward_ns", "compile_ns", "samples")
        rows = zip(*(columns.get(name, ()) for name in names), strict=True)
        for number, (forward_ns, backward_ns, compile_ns, samples) in enumerate(rows, first):
            if compile_ns <= 0 and samples > 0 and number > 0:
                (before if number < limit else since).append((forward_ns + backward_ns) / samples)
    if min(len(before), len(since)) < FEWEST_COMPARED_STEPS:
        return None
    samples_per_step = known_mean(rank, "samples") or 0.0
    mid_ns = (fmean(since) - fmean(before)) * samples_per_step
    error_ns = math.sqrt(variance(since) / len(since) + variance(before) / len(before)) * samples_per_step
    return mid_ns - NOISE_MULTIPLE * error_ns, max(0.0, mid_ns), max(0.0, mid_ns + NOISE_MULTIPLE * error_ns)


def _finding(analysis: Analysis, title: str, evidence: Mapping[str, Value]) -> Finding:
    """The parts that all findings of this rule share, without a cost."""
    facts = analysis.lead.compile
    reasons = facts.recompile_reasons
    by_shape = any(word in reason.lower() for reason, _ in reasons for word in SHAPE_WORDS)
    return Finding(
        title=title,
        phase="forward",
        evidence=evidence,
        where=known_places(*(place for _, place in reasons[:3]), facts.where)[:2],
        fix=Fix(
            technique="dynamic-shapes" if by_shape or not reasons else "stable-guards",
            settings={"dynamic": True} if by_shape or not reasons else {},
        ),
    )


def _by_phase(analysis: Analysis, compile_ns: float) -> dict[str, int]:
    """Compile time by phase: the forward waits for it; what exceeds the forward was spent on the backward's graph."""
    in_forward = min(compile_ns, float(analysis.lead.breakdown.mean_ns("forward")))
    return {"forward": round(in_forward), "backward": round(compile_ns - in_forward)}
