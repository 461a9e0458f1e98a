"""Analysis -> uncompiled-model: an eager model whose operators torch.compile could fuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Skipped, Value, saving_within
from hotloop.core.operators import is_fusable
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import batches_vary_in_length, is_material, known_places, train_share

LEAST_FUSABLE_RATIO = 0.25
SURE_RATIO, LIKELY_RATIO, MOST_RATIO, MOST_SURE_RATIO = 0.1, 0.25, 0.6, 0.04
"""The part of the fusable time that compiling saves at least, probably and at most; and the largest share of a step
that the low end promises. Rules of thumb."""


def fusable_share(ops: Mapping[str, Any]) -> float:
    """Share of the recorded operator time that a compiler could fuse, 0..1."""
    found = ops.get("ops", ())
    total = sum(float(op["cpu_ns"]) for op in found)
    return sum(float(op["cpu_ns"]) for op in found if is_fusable(str(op["name"]))) / total if total > 0 else 0.0


@rule(
    "uncompiled-model", "the model runs eagerly although torch.compile could fuse its operators", kind=Kind.OPPORTUNITY
)
def judge_uncompiled_model(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Finds models that run eagerly although much of their time goes to operators that torch.compile fuses.

    ## Why it costs
    If pointwise operators run one by one, each of them reads and writes all of its data and costs microseconds of
    Python, dispatch and autograd time. A compiler merges many such passes into one. Matrix products gain little.

    ## How to recognize it
    torch.compile was not used, and operators that it fuses take at least a quarter of the recorded operator time. The
    forecast is a rule of thumb, which never raises the finding above low: `hotloop tune` measures the saving.

    ## What to do
    Call `model = torch.compile(model)` after the model is on its device (and after wrapping it in DDP). Measure over
    enough steps to pay for compiling, which takes seconds to minutes.

    ## When it is wrong
    Shapes that change with every batch cause recompilation, code that prints or branches on tensor values breaks the
    graph, and short runs never make up for the compile time. torch.compile leaves torch's LSTM, GRU and RNN layers as
    they are (with a graph break), and their time cannot be separated from the rest, so a model with such layers is not
    judged. Compiled models do not support gradients of gradients at all. If the run may need them, or may have batches
    of many lengths, the severity is info. On a CPU, models that are dominated by matrix products gain a few percent at
    best, and convolutions may gain or lose from another memory format, which is not forecast.
    """
    rank = analysis.lead
    if rank.compile.used:
        return None
    if rank.model_is_recurrent:
        return Skipped(reason="the model has torch's LSTM, GRU or RNN layers, which torch.compile does not compile")
    if rank.ops is None:
        return Skipped(reason="no operator times were recorded")
    fusable = fusable_share(rank.ops)
    cost = fusable * train_share(analysis)
    if fusable < LEAST_FUSABLE_RATIO or not is_material(analysis, LIKELY_RATIO * cost):
        return None
    saving = saving_within(
        cost, min(MOST_SURE_RATIO, SURE_RATIO * cost), LIKELY_RATIO * cost, MOST_RATIO * cost, Basis.RULE_OF_THUMB
    )
    evidence: dict[str, Value] = {"fusable_ratio": round(fusable, 3)}
    varies, is_graded = batches_vary_in_length(rank), bool(rank.ops.get("graded_backward"))
    if varies or is_graded:
        # A model is compiled again for each length. Gradients that are enabled in backward mean a checkpoint that
        # recomputes, or gradients of gradients, which look the same; with the latter, a compiled model fails.
        saving = replace(saving, low_ratio=0.0)
        evidence |= {"batches_vary_in_length": varies, "backward_with_gradients_on": is_graded}
    return Finding(
        title=f"{fusable:.0%} of the operator time is in operators that torch.compile could fuse",
        phase="forward",
        cost_ns=round(saving.high_ratio * analysis.step_ns),
        cost_ratio=saving.high_ratio,
        saving=saving,
        evidence=evidence,
        where=known_places(*(line.where for line in rank.lines.get("forward_ns", ())[:1])),
        fix=Fix(technique="compile-model"),
    )
