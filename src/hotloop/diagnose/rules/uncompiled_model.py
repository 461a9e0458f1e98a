"""Analysis -> uncompiled-model: an eager model whose operators torch.compile could fuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Skipped, Value, saving_within
from hotloop.core.operators import is_fusable
from hotloop.core.rules import rule
from hotloop.diagnose.compiled import compiling_is_unsure
from hotloop.diagnose.loading import most_saved_ratio
from hotloop.diagnose.measured import basis_of_replay, batches_vary_in_length, known_places, train_share
from hotloop.diagnose.noise import is_material
from hotloop.diagnose.wording import SURE_RATIO

LEAST_FUSABLE_RATIO = 0.25


def fusable_share(ops: Mapping[str, Any]) -> float:
    """Share of the recorded operator time that a compiler could fuse, 0..1."""
    total = fusable = 0.0
    for op in ops.get("ops", ()):
        cpu_ns = float(op["cpu_ns"])
        total += cpu_ns
        if is_fusable(str(op["name"])):
            fusable += cpu_ns
    return fusable / total if total > 0 else 0.0


@rule("uncompiled-model", "the model runs eagerly although torch.compile could fuse its operators")
def judge_uncompiled_model(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Finds models that run eagerly although much of their time goes to operators that torch.compile fuses.

    ## Why it costs
    Run one by one, pointwise operators read and write all of their data each time, and each costs microseconds of
    Python, dispatch and autograd. A compiler makes one pass of many. Matrix products gain little.

    ## How to tell
    torch.compile was not used, and the step computed from a probe is shorter. After training, the probe times each
    fusable operator on a part of its recorded shapes that stays in the caches; the data flow between one step's
    operators shows which of them fuse into one pass and what that pass reads and writes. Nothing is compiled for it, so
    the saving is `simulated`; docs/compile-forecast.md compares it with compiled trainings. Without a probe, at least a
    quarter of the recorded operator time is fusable; that alone never raises the finding above low.

    ## What to do
    Call `model = torch.compile(model)` after the model is on its device (and after wrapping it in DDP). Measure over
    enough steps to pay for compiling, which takes seconds to minutes.

    ## When it is wrong
    Shapes that change every batch recompile, code that prints or branches on tensor values breaks the graph, and short
    runs never recover the compile time. torch.compile leaves LSTM, GRU and RNN layers of torch as they are (with a
    graph break), and their time cannot be separated from the rest, so a model with such layers is not judged. Compiled
    models do not support gradients of gradients at all: where these, or batches of many lengths, may occur, the
    severity is info. On a CPU, models dominated by matrix products gain a few percent at best, and convolutions may
    gain or lose by another memory format, which is not forecast.
    """
    rank = analysis.lead
    if rank.compile.used:
        return None
    if rank.model_is_recurrent:
        reason = "the model has LSTM, GRU or RNN layers of torch, which torch.compile leaves as they are"
        return Skipped(rule="uncompiled-model", reason=reason)
    share = train_share(analysis)
    forecast = rank.forecasts.get("compile-model")
    evidence: dict[str, Value] = {}
    if forecast is not None:
        low_ratio = 0.0 if compiling_is_unsure(analysis) else forecast.saving_low_ratio
        saving = saving_within(
            min(max(share, forecast.saving_mid_ratio), most_saved_ratio(rank)),
            low_ratio,
            forecast.saving_mid_ratio,
            forecast.saving_high_ratio,
            basis_of_replay(low_ratio, forecast.saving_mid_ratio),
        )
        if not is_material(analysis, saving.mid_ratio):
            return None
        evidence |= dict(forecast.evidence)
        sure = saving.low_ratio >= SURE_RATIO and not compiling_is_unsure(analysis)
        title = f"torch.compile may save up to {saving.high_ratio:.0%} of the step (likely {saving.mid_ratio:.0%})"
        if sure:  # computed, not timed: the range is what can be said
            title = f"torch.compile would save {saving.low_ratio:.0%} to {saving.high_ratio:.0%} of the step"
    elif rank.ops is None:
        return Skipped(rule="uncompiled-model", reason="no operator times were recorded")
    else:
        fusable = fusable_share(rank.ops)
        if fusable < LEAST_FUSABLE_RATIO:
            return None
        cost_ratio = fusable * share
        saving = saving_within(
            cost_ratio, min(0.04, 0.1 * cost_ratio), 0.25 * cost_ratio, 0.6 * cost_ratio, Basis.RULE_OF_THUMB
        )
        if not is_material(analysis, saving.mid_ratio):
            return None
        evidence["fusable_ratio"] = round(fusable, 3)
        title = f"{fusable:.0%} of the operator time is in operators that torch.compile could fuse"
    if compiling_is_unsure(analysis):
        # Gradients on in backward: a checkpoint that computes again, or gradients of gradients, which cannot be told
        # apart; at the latter a compiled model fails.
        saving = replace(saving, low_ratio=0.0)
        evidence["batches_vary_in_length"] = batches_vary_in_length(rank)
        evidence["backward_with_gradients_on"] = bool(rank.ops is not None and rank.ops.get("graded_backward"))
    return Finding(
        rule="uncompiled-model",
        kind=Kind.OPPORTUNITY,
        title=title,
        phase="forward",
        cost_ns=round(saving.high_ratio * analysis.step_ns),
        cost_ratio=saving.high_ratio,
        saving=saving,
        evidence=evidence,
        where=known_places(*(line.where for line in rank.lines.get("forward_ns", ())[:1])),
        fix=Fix(technique="compile-model", settings={}, safety=Safety.ASK, numerics=Numerics.REORDERED),
        unit=analysis.unit,
        next="hotloop rule uncompiled-model",
    )
