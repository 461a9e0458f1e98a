"""foreach-clipping and zero-grad-to-none: calls on gradients with other arguments."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Safety, Saving, Value
from hotloop.core.sources import OtherLiteral
from hotloop.core.techniques import (
    Applied,
    Call,
    Context,
    Effect,
    MemorySaving,
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


WATCHED = 4
"""Calls after which it is said how many parameters got a gradient between all of them."""


class ZeroGradToNone(Technique):
    """
    ## What it does
    Sets gradients to None where the script calls `zero_grad(set_to_none=False)`. Backward then writes the gradients
    instead of adding them to zeros. If a parameter gets no gradient in a step, its gradient is set to zeros before the
    optimizer steps, as the script requested.

    ## When it helps
    It saves one pass that writes all gradients, one pass that reads them, and their memory between steps.

    ## When it does not
    A call without `set_to_none=False` already does this. The technique does not apply to gradients that are parts of a
    larger buffer (apex, DeepSpeed, DDP with `gradient_as_bucket_view`), or to CUDA graphs, which need gradients to stay
    at the same address. A script that reads `p.grad` before backward finds None: check for that first.

    ## Numerics
    Exact: zero plus a gradient is that gradient.
    """

    id = "zero-grad-to-none"
    summary = "free gradients between steps (`set_to_none=True`)"
    numerics = Numerics.EXACT
    stage = Stage.LOOP
    memory = MemorySaving(what="gradients between two steps")
    functions = ("torch.optim.optimizer:Optimizer.zero_grad", "torch.nn.modules.module:Module.zero_grad")
    source = OtherLiteral(function="zero_grad", argument="set_to_none", before=False, after=True)

    def why_no_source(self, values: Mapping[str, Value]) -> str | None:
        if values.get("always") is not None and values.get("always") == values.get("parameters"):
            return None
        return "not every parameter is known to get a gradient in every step"

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        target = call.args[0]
        chosen = call.args[1] if len(call.args) > 1 else call.kwargs.get("set_to_none", True)
        if chosen:
            return NotApplicable(why="zero_grad already sets gradients to None")
        releases: Any = context.memory(self.id).setdefault("releases", weakref.WeakKeyDictionary())
        release: Release = releases.setdefault(target, Release())
        parameters = _parameters(target)
        if not release.windows:
            if all(p.grad is None for p in parameters):
                return None
            release.why_not = _find_hindrance(parameters)
        if release.why_not is not None:
            return NotApplicable(why=release.why_not)
        release.windows += 1
        release.hook(context.optimizers())
        call.function = lambda *_, **__: release.take(parameters)
        if release.windows < WATCHED:
            return None
        if release.windows == WATCHED:
            release.always = len(release.taken.keys() - release.missed)
        return Applied(
            text="set_to_none=True for {always} of {parameters} parameters",
            values={"always": release.always, "parameters": len(parameters)},
        )


class Release:
    """Gradients that are set to None, and zeros in place of those that do not come again."""

    def __init__(self) -> None:
        self.windows = self.always = 0
        self.why_not: str | None = None
        self.taken: dict[int, Any] = {}
        """References to parameters by id, whose gradients the script thinks of as kept."""
        self.missed: set[int] = set()
        """Those that were without a gradient in some step."""
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()

    def hook(self, optimizers: list[Any]) -> None:
        for optimizer in optimizers:
            if optimizer not in self._hooked:
                self._hooked.add(optimizer)
                optimizer.register_step_pre_hook(self._before_step)

    def take(self, parameters: list[Any]) -> None:
        for p in parameters:
            if p.grad is not None:
                self.taken[id(p)] = weakref.ref(p)
                p.grad = None

    def _fill(self, optimizer: Any) -> None:
        """A parameter that got no gradient has zeros when the optimizer steps, as the script left it."""
        import torch

        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None and id(p) in self.taken and self.taken[id(p)]() is p:
                    p.grad = torch.zeros_like(p)
                    self.missed.add(id(p))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """A closure calls ``zero_grad`` and backward within the step, so the zeros come after it."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._fill(optimizer)
            return None

        def then_fill() -> Any:
            loss = closure()
            self._fill(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], then_fill, *args[2:]), kwargs
        return args, {**kwargs, "closure": then_fill}


def _find_hindrance(parameters: list[Any]) -> str | None:
    import gc

    import torch

    for p in parameters:
        grad = p.grad
        if grad is None or grad.is_sparse:
            continue
        try:
            size_bytes = grad.untyped_storage().nbytes()
        except (RuntimeError, NotImplementedError):
            return f"gradients are of {type(grad).__name__}"
        if size_bytes > grad.numel() * grad.element_size():
            return "gradients are views of a larger buffer"
    cuda: Any = torch.cuda
    if cuda.is_initialized() and any(isinstance(one, cuda.CUDAGraph) for one in gc.get_objects()):
        return "a CUDA graph of the script may write into these gradients"
    return None


def _parameters(target: Any) -> list[Any]:
    groups = getattr(target, "param_groups", None)
    return list(target.parameters()) if groups is None else [p for group in groups for p in group["params"]]
