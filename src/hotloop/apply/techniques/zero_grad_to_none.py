"""zero-grad-to-none: gradients are given up between steps, where the script fills them with zeros."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.sources import OtherLiteral
from hotloop.core.techniques import Applied, Call, Context, Effect, MemorySaving, NotApplicable, Stage, Technique

WATCHED = 3
"""Windows between two calls in which it is seen which parameters get a gradient."""


class ZeroGradToNone(Technique):
    """
    ## What it does
    Where the script calls `zero_grad(set_to_none=False)`, sets to None the gradients of parameters that got one in each
    of the first three steps. Backward then writes them instead of adding to zeros. If such a parameter gets none in a
    step, it gets zeros before the optimizer steps, as the script asked.

    ## When it helps
    It saves one pass that writes all gradients, one that reads them, and their memory between steps.

    ## When it does not
    A call without `set_to_none=False` does it already. Gradients that are parts of a larger buffer (apex, DeepSpeed,
    DDP with `gradient_as_bucket_view`) and CUDA graphs need them to stay where they are. A script that reads `p.grad`
    before backward finds None: check that first.

    ## Numerics
    Exact: zero plus a gradient is that gradient.
    """

    id = "zero-grad-to-none"
    summary = "free gradients between steps (`set_to_none=True`)"
    effort = "easy"
    numerics = Numerics.EXACT
    safety = Safety.ASK
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
        watches: Any = context.memory(self.id).setdefault("watches", weakref.WeakKeyDictionary())
        watch = watches.get(target)
        if watch is None:
            watch = watches[target] = ZeroingWatch()
        parameters = _parameters(target)
        if watch.windows <= WATCHED:
            watch.hook(context.optimizers())
            watch.look(parameters)
            if watch.windows <= WATCHED:
                original, args, kwargs = call.function, call.args, dict(call.kwargs)

                def zero_and_note(*_: Any, **__: Any) -> None:
                    original(*args, **kwargs)
                    watch.note(parameters)

                call.function = zero_and_note
                return None
            watch.why_not = watch.why_not or _find_hindrance(parameters)
            watch.releases = watch.why_not is None
        if watch.why_not is not None:
            return NotApplicable(why=watch.why_not)
        always = watch.always

        def release(*_: Any, **__: Any) -> None:
            rest = []
            for p in parameters:
                if p.grad is not None:
                    if id(p) in always:
                        p.grad = None
                    else:
                        rest.append(p.grad)
            for grad in rest:
                grad.detach_()
                grad.zero_()

        call.function = release
        return Applied(
            text="set_to_none=True for {always} of {parameters} parameters",
            values={"always": len(always), "parameters": len(parameters)},
        )


class ZeroingWatch:
    """Which parameters got a gradient between every two calls so far."""

    def __init__(self) -> None:
        self.windows = 0
        self.always: dict[int, Any] = {}
        """References to parameters by id."""
        self.why_not: str | None = None
        self.releases = False
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._versions: dict[int, tuple[Any, int]] = {}
        """Gradients and their versions after the last call, by parameter."""

    def hook(self, optimizers: list[Any]) -> None:
        """Before the first release: a closure makes it within the step, too late for that step."""
        for optimizer in optimizers:
            if optimizer not in self._hooked:
                self._hooked.add(optimizer)
                optimizer.register_step_pre_hook(_fill(self))

    def look(self, parameters: list[Any]) -> None:
        """A call comes: whoever has the same gradient as after the last call got none."""
        got = {}
        for p in parameters:
            grad, (reference, version) = p.grad, self._versions.get(id(p), (None, -1))
            if grad is not None and (reference is None or reference() is not grad or version != grad._version):
                got[id(p)] = weakref.ref(p)
        if self.windows == 1:
            self.always = got
        elif self.windows > 1:
            self.always = {key: p for key, p in self.always.items() if key in got}
        self.windows += 1

    def note(self, parameters: list[Any]) -> None:
        self._versions = {id(p): (weakref.ref(p.grad), p.grad._version) for p in parameters if p.grad is not None}


def _fill(watch: ZeroingWatch) -> Callable[..., Any]:
    """A parameter that got no gradient has zeros when the optimizer steps, as the script left it.

    A closure calls ``zero_grad`` and backward within the step, so the zeros come after it.
    """
    import torch

    def fill(optimizer: Any) -> None:
        for group in optimizer.param_groups if watch.releases else ():
            for p in group["params"]:
                if p.grad is None and id(p) in watch.always and watch.always[id(p)]() is p:
                    p.grad = torch.zeros_like(p)

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            fill(optimizer)
            return None

        def then_fill() -> Any:
            loss = closure()
            fill(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], then_fill, *args[2:]), kwargs
        return args, {**kwargs, "closure": then_fill}

    return before_step


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
