"""foreach-clipping: gradients are clipped in one call."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Safety, Saving, Value
from hotloop.core.techniques import (
    Applied,
    Call,
    Context,
    Effect,
    NotApplicable,
    Setting,
    Stage,
    Technique,
)

FOREACH_AT = {"clip_grad_norm_": 4, "clip_grad_value_": 2}
"""Position of the argument ``foreach``."""


class ForeachClipping(Technique):
    """
    ## What it does
    Calls `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_` without the script's `foreach=False`: computing the
    norms of all gradients and scaling them then takes a few calls, if torch supports that for these tensors. hotloop
    cannot replace a loop in the script's own code: in that case, write `torch.nn.utils.clip_grad_norm_(parameters,
    max_norm)` instead.

    ## When it helps
    It helps with many small gradients, each of which otherwise costs several operators and their Python overhead. The
    probe after a run measures the saving on the tensors of that run.

    ## When it does not
    It saves nothing for a few large gradients, which are memory-bound either way. Calls that do not pass `foreach`
    already use the list form.

    ## Numerics
    Reordered: the same norms and the same factor; on a CPU the bits are the same.
    """

    id = "foreach-clipping"
    summary = "clip all tensors in one call (`torch._foreach_*`) instead of one by one"
    numerics = Numerics.REORDERED
    safety = Safety.AUTO
    stage = Stage.LOOP
    treats = ("python-gradient-loop",)
    settings = (
        Setting(
            name="foreach",
            kind=bool,
            default=True,
            choices=(True,),
            help="use operations on lists of tensors instead of a loop",
        ),
    )
    functions = ("torch.nn.utils.clip_grad:clip_grad_norm_", "torch.nn.utils.clip_grad:clip_grad_value_")

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        name = call.name.rpartition(":")[2]
        place = FOREACH_AT[name]
        positional = len(call.args) > place
        chosen = call.args[place] if positional else call.kwargs.get("foreach")
        if chosen is not False:
            return NotApplicable(why=f"{name} already uses lists")
        # None, not True: torch raises on True for tensors that it has no lists for, and loops on None.
        if positional:
            call.args = (*call.args[:place], None, *call.args[place + 1 :])
        else:
            call.kwargs["foreach"] = None
        return Applied(text="{function} on lists instead of the script's foreach=False", values={"function": name})

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """None: the probe times a loop by hand, which this does not replace from outside."""
        return None
