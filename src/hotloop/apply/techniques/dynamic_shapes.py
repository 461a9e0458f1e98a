"""dynamic-shapes: what the script compiles is compiled once for all shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable, Setting, Stage, Technique

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")


class DynamicShapes(Technique):
    """
    ## What it does
    Passes `dynamic=True` to the script's own calls of `torch.compile` and `Module.compile`: tensor sizes become
    variables of the compiled code.

    ## When it helps
    Batches whose length keeps changing: each recompiles, for seconds. The finding `recompilation` measures that time in
    the run.

    ## When it does not
    A handful of shapes, all compiled in the first steps: code for one shape is faster than code for all. Guards on
    other things than shapes (Python numbers, types). Modes that record CUDA graphs, one per shape: those calls stay as
    they are. So does the script's `dynamic=False`, unless the strategy sets `override = true`.

    ## Numerics
    Reordered: torch may choose other kernels, which sum in another order.
    """

    id = "dynamic-shapes"
    summary = "compile once for all shapes"
    numerics = Numerics.REORDERED
    stage = Stage.COMPILE
    treats = ("recompilation",)
    acts_on_start = True
    conflicts = ("compile-model",)
    settings = (
        Setting(name="dynamic", kind=bool, default=True, choices=(True,), help="value passed to torch.compile"),
    )
    functions = ("torch:compile",)

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        chosen, mode = call.kwargs.get("dynamic"), call.kwargs.get("mode")
        if chosen:
            return NotApplicable(why="the script sets dynamic=True")
        if mode in CUDA_GRAPH_MODES:
            return NotApplicable(why=f"the script's mode={mode!r} records a CUDA graph per shape")
        if call.kwargs.get("shapes_spec") is not None:
            return NotApplicable(why="the script sets shapes_spec, which defines the sizes that vary")
        explicit = "dynamic=False" if chosen is False else None
        if explicit is not None and not context.strategy.overrides(self.id):
            return NotApplicable(why=f"the script sets {explicit}", explicit=explicit)
        call.kwargs["dynamic"] = True
        replaced = "" if explicit is None else f", instead of the script's {explicit}"
        return Applied(
            text=f"torch.compile(dynamic={{dynamic}}){replaced}", values={"dynamic": True}, explicit=explicit
        )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if context.from_outside:
            return None
        return NotApplicable(why="the API does not patch torch; write torch.compile(..., dynamic=True)")
