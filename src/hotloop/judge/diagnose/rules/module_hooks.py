"""module-hooks: functions that the script registered as hooks of modules take part of every step."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hotloop.core.analysis import Analysis, Line, RankAnalysis
from hotloop.core.findings import Finding, Fix, Where, saving_of_removal
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import FEWEST_SAMPLES, frames_inside_backward, places
from hotloop.judge.diagnose.measured import format_share, format_time, share_bounds, threshold_ratio

FLOOR_RATIO = 0.02
PHASES = {"forward_ns": "forward", "backward_ns": "backward"}
_OF_AUTOGRAD = frozenset({"forward", "backward", "setup_context", "jvp", "vjp"})
"""A user's function inside the backward belongs to an autograd.Function, a recomputed forward, or a hook."""


@rule("module-hooks", "functions registered as hooks take part of every step")
def module_hooks(analysis: Analysis) -> Finding | None:
    """## What it does
    Measures the time that your own hooks take inside forward and backward: statistics, gradient norms, activation dumps
    and watchers that were registered with `register_forward_hook`, `register_full_backward_hook`,
    `Tensor.register_hook` and the like.

    ## Why it costs
    Each call of a module with a hook leaves torch's code for yours. The hook runs once per module in every step. On an
    accelerator, the host waits for the device each time the hook reads a value back.

    ## How to recognize it
    Stack samples of the forward show functions that were registered on the model's modules when it was first called,
    and samples of the backward show functions of yours that belong to no `autograd.Function`.

    ## What to do
    Remove hooks that were left over from debugging. Let the hooks that you need return immediately except in every N-th
    step, and keep values as tensors until then.

    ## When it is wrong
    Some methods need a hook: gradient compression, spectral normalization, or feature extraction for a loss. In that
    case, the hook's cost is part of the method's cost.
    """
    rank = analysis.lead
    if rank.step_mean_ns <= 0:
        return None
    spent_ns: dict[str, float] = {}
    low_ns = 0.0
    found: list[Line] = []
    for field, phase in PHASES.items():
        lines = list(_hook_lines(rank, field))
        if sum(line.samples for line in lines) < FEWEST_SAMPLES:
            continue
        share = min(1.0, sum(line.share_ratio for line in lines))
        everything = rank.lines[field]
        total = sum(line.samples for line in everything) / max(1e-9, sum(line.share_ratio for line in everything))
        spent_ns[phase] = share * rank.mean[field]
        low_ns += share_bounds(share, total)[0] * rank.mean[field]
        found += lines
    cost_ns = sum(spent_ns.values())
    cost_ratio = min(1.0, cost_ns / rank.step_mean_ns)
    if cost_ratio < threshold_ratio(rank, floor_ratio=FLOOR_RATIO, judged_fields=tuple(PHASES)):
        return None
    line = max(found, key=lambda one: one.share_ratio)
    return Finding(
        title=f"your own hooks take {format_time(cost_ns)} ({format_share(cost_ratio)}) of every step: "
        f"{line.where.function} in {os.path.basename(line.where.file)}",
        phase=max(spent_ns, key=lambda phase: spent_ns[phase]),
        cost_ns=round(cost_ns),
        time_ns={phase: round(ns) for phase, ns in spent_ns.items()},
        cost_ratio=cost_ratio,
        saving=saving_of_removal(cost_ratio, None, low_ns / rank.step_mean_ns),
        evidence={
            "samples": sum(one.samples for one in found),
            "registered": [f"{os.path.basename(one.file)}:{one.line} {one.function}" for one in rank.hooks_where],
        },
        where=places(tuple(sorted(found, key=lambda one: -one.share_ratio))),
        fix=Fix(technique="remove-hooks"),
    )


def _hook_lines(rank: RankAnalysis, field: str) -> Iterator[Line]:
    hooks = {(where.file, where.function, where.line) for where in rank.hooks_where}
    for line in rank.lines.get(field, ()):
        stack = line.stack or (line.where,)
        inside = frames_inside_backward(rank, stack) if field == "backward_ns" else ()
        if any(_is_in(where, hooks) for where in stack) or (
            inside and not any(where.name in _OF_AUTOGRAD for where in inside)
        ):
            yield line


def _is_in(where: Where, hooks: set[tuple[str, str, int]]) -> bool:
    """Whether a frame belongs to a hook: the same file and name, not above its definition."""
    return any((where.file, where.name) == (file, function) and where.line >= line for file, function, line in hooks)
