"""slow-optimizer: the optimizer updates one tensor at a time although one kernel could update all."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, OptimizerFacts
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Saving, Value, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.forecasts import LEAST_WON_RATIO, faster_form, slow_optimizer_of
from hotloop.judge.diagnose.lines import places
from hotloop.judge.diagnose.measured import describe_probed, evidence_of, format_share, format_time, known_places

FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimizers of torch.optim with a fused update."""

BY_LISTS = "foreach-clipping"
"""The fix for a loop over gradients: one call for all tensors."""

UNPROVED_LOW_RATIO = 0.04
"""Without a probe, a tip stays below the threshold of medium."""


@rule(
    "slow-optimizer",
    "the optimizer updates one tensor at a time although one kernel could update all",
    kind=Kind.OPPORTUNITY,
    ablation="skip-optimizer-step",
)
def slow_optimizer(analysis: Analysis) -> Finding | None:
    """## What it does
    Measures the time spent in `optimizer.step()`. A probe with this model's own tensors measures how long the fused or
    foreach form of the same optimizer would take.

    ## Why it costs
    The plain form runs about ten small operators per parameter tensor, one after another, and each reads and writes the
    entire tensor again. The fused form makes one pass over all tensors.

    ## How to recognize it
    The `optimizer` phase is a material part of the step, the optimizer is not fused, and the probe after training
    measured a gain on tensors of the same shapes.

    ## What to do
    Use `AdamW(..., fused=True)` (also for Adam, SGD and Adagrad), or `foreach=True` where the fused form is not
    supported.

    If you or another library defined a class with the same name, torch's form is compared with the recorded steps:
    switch only if both compute the same. An optimizer that torch does not have (Lion, LAMB) is reported if stack
    samples show a loop over `.grad`; `torch._foreach_*` over lists does the same in a few calls.

    ## When it is wrong
    A few large tensors leave little to save: their update is memory-bound either way. Fused updates round in another
    order, so the loss curve differs in the last digits. Tensor subclasses and sparse gradients may not be supported.
    """
    optimizer = slow_optimizer_of(analysis)
    if optimizer is None:
        return None
    cost_ratio = min(1.0, analysis.share("optimizer"))
    loops = tuple(line for line in analysis.lead.lines.get("optimizer_ns", ()) if line.walks_gradients)
    forecast = faster_form(analysis)
    if forecast is None:
        saving, technique, settings = _unproved(optimizer, cost_ratio, loops=bool(loops))
        if technique is None:
            return None
    else:
        if forecast.saving_mid_ratio <= LEAST_WON_RATIO:
            return None
        technique, settings = forecast.technique, dict(forecast.settings)
        saving = saving_within(
            cost_ratio,
            forecast.saving_low_ratio,
            forecast.saving_mid_ratio,
            forecast.saving_high_ratio,
            forecast.basis,
        )
    step_ns = float(analysis.lead.breakdown.mean_ns("optimizer"))
    form = "fused" if technique == "fused-optimizer" else "foreach"
    other = f"torch.optim.{optimizer.name} in its {form} form" if optimizer.own_class else f"its {form} form"
    if technique == BY_LISTS:
        other = "the same loop as torch._foreach_* calls over lists"
    tensors = f" over {optimizer.tensors} tensors" if optimizer.tensors else ""
    return Finding(
        title=f"{optimizer.name}.step(){tensors} takes {format_time(step_ns)} ({format_share(cost_ratio)}) of every "
        f"step; {other} " + (describe_probed(forecast, saving.mid_ratio) if forecast else "was not measured here"),
        phase="optimizer",
        cost_ns=round(step_ns),
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "optimizer": optimizer.name,
            "own_class": optimizer.own_class or None,
            "tensors": optimizer.tensors,
            "parameters": optimizer.parameters,
            "foreach": optimizer.foreach,
            "fused": optimizer.fused,
            "device": optimizer.device,
            **({} if forecast is None else evidence_of(forecast)),
        },
        where=places(loops, 1) if technique == BY_LISTS else known_places(optimizer.where),
        fix=Fix(
            technique=technique,
            settings=settings,
            # A class that is not torch's own has no other form, and torch's class may compute another formula.
            safety=Safety.SHOW if optimizer.own_class else None,
            numerics=Numerics.LOSSY if optimizer.own_class and technique != BY_LISTS else None,
        ),
    )


def _unproved(
    optimizer: OptimizerFacts, cost_ratio: float, *, loops: bool
) -> tuple[Saving, str | None, dict[str, Value]]:
    """A rule of thumb for optimizers that have a fused form, or a loop of their own; technique None for all others."""
    saving = saving_within(
        cost_ratio, min(UNPROVED_LOW_RATIO, 0.15 * cost_ratio), 0.4 * cost_ratio, 0.8 * cost_ratio, Basis.RULE_OF_THUMB
    )
    if optimizer.name in FUSED:
        return saving, "fused-optimizer", {"fused": True}
    if optimizer.foreach is False and not optimizer.own_class:
        return saving, "foreach-optimizer", {"foreach": True}
    if optimizer.own_class and loops:
        return saving, BY_LISTS, {}
    return saving, None, {}
