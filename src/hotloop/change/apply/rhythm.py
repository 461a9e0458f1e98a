"""A DDP model's forwards, backwards and steps -> which backwards need no exchange; no step on local gradients.

Averaging is linear: the mean of (averaged so far + local) is averaged so far + mean of local. A gradient may therefore
be averaged after any backward, or before it is used, and the step sees the same sum. So one more exchange is never
wrong, and one too few is made up for before torch's own functions use the gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from hotloop.change.apply.ddp import agree, average_gradients, reduced_parameters, why_no_average
from hotloop.change.apply.forward import wrap_forward
from hotloop.change.apply.gradient_use import GradientReads, find_gradient_use
from hotloop.core.findings import Value

FIRST_DECISION = 8
LAST_DECISION = 1024
"""Backwards after which the ranks compare what they saw: at the first, and whenever the count has doubled."""


class Rhythm:
    """Learns how many backwards a step has, then lets all but the last one of them keep its gradients local.

    ``emit(text, values)`` is called once, when it is decided: with the values of an Applied, or None where the exchange
    stays as it was. All that changes the exchange is decided from what happens on every rank alike: backwards through
    DDP and uses of its gradients.
    """

    def __init__(self, ddp: Any, windows: int, emit: Callable[[str, Mapping[str, Value] | None], None]) -> None:
        self._ddp = weakref.ref(ddp)
        self._emit = emit
        self._enough = windows
        self._learning = True
        self._micro_batches = 0  # what was learned; 0 before
        self._fired = False
        self._forward_synced = True
        self._position = 0
        self._unsynced = False
        self._count = 0
        self._next_decision = FIRST_DECISION
        self._windows: list[int] = []
        self._used_at: list[int] = []
        self._steps = 0
        self._problem: str | None = None
        parameters = reduced_parameters(ddp)
        self._ids = {id(parameter) for parameter in parameters}
        self._reads = GradientReads(self._ids, self._read)
        self._reads.install()
        self._hooks = [parameters[0].register_post_accumulate_grad_hook(self._got)]
        wrap_forward(ddp, self._around)
        vars(ddp)["forward"].keeps_local = self.keeps_local  # for whoever counts exchanges before a forward

    def watch_optimizer(self, optimizer: Any) -> None:
        """Call ``before_use`` before each of its steps, if it changes this model's parameters."""
        if any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            optimizer.register_step_pre_hook(partial(_before_step, self))

    def before_use(self, ends_window: bool) -> None:
        """The script is about to use gradients through torch's own functions: they are averaged, whatever happened."""
        ddp = self._ddp()
        if ddp is None:
            return
        self._close_backward()
        if self._unsynced:
            parameters = reduced_parameters(ddp)
            if any(parameter.grad is not None for parameter in parameters):
                average_gradients(ddp, parameters)
            self._unsynced = False
        if self._learning:
            self._learn(ddp, ends_window)
        if ends_window:
            self._position = 0

    def keeps_local(self) -> bool:
        """Whether the backward of the forward that begins now will exchange nothing."""
        self._close_backward()
        return self._position + 1 < self._micro_batches

    def closure_given(self) -> None:
        """A step will run forwards and backwards itself, and use the gradients of each: every one is exchanged."""
        self._problem = self._problem or "the optimizer's step is called with a closure"
        self._micro_batches = 0

    # -- what happens ------------------------------------------------------------------------------------------------

    def _got(self, parameter: Any) -> None:
        self._fired = True

    def _read(self, place: str) -> None:
        self._problem = self._problem or f"the script changes gradients itself ({place})"

    def _around(self, call: Any, args: Any, kwargs: Any) -> Any:
        ddp = self._ddp()
        if ddp is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return call(*args, **kwargs)
        self._close_backward()
        if self._learning and self._count >= self._next_decision:
            self._decide(ddp)
        wanted = bool(ddp.require_backward_grad_sync)
        if self._learning and not wanted:
            self._problem = self._problem or "the script already uses no_sync"
        if not wanted or self._position + 1 >= self._micro_batches or ddp._join_config.enable:
            self._forward_synced = wanted
            return call(*args, **kwargs)
        self._forward_synced = False
        ddp.require_backward_grad_sync = False
        try:
            return call(*args, **kwargs)
        finally:
            ddp.require_backward_grad_sync = True
            ddp.require_forward_param_sync = True  # buffers are still sent before every forward, as before

    def _close_backward(self) -> None:
        """Count the backward that happened since the last forward or use, if one did."""
        if not self._fired:
            return
        self._fired = False
        self._count += 1
        self._position += 1
        self._unsynced = not self._forward_synced
        if not self._learning and self._forward_synced and self._position >= self._micro_batches:
            self._position = 0

    # -- learning ----------------------------------------------------------------------------------------------------

    def _learn(self, ddp: Any, ends_window: bool) -> None:
        if not self._position:
            return
        if not ends_window:
            self._used_at.append(self._position)
            return
        if any(position < self._position for position in self._used_at):
            self._problem = self._problem or "gradients are clipped or unscaled between the micro-batches of a step"
        self._used_at.clear()
        self._windows.append(self._position)
        for parameter in reduced_parameters(ddp):
            gradient = parameter.grad
            if gradient is None:
                self._problem = self._problem or "a parameter has no gradient at the step"
            elif gradient.is_sparse:
                self._problem = self._problem or "a parameter has sparse gradients"

    def _decide(self, ddp: Any) -> None:
        if ddp._join_config.enable:
            self._end("the script joins ranks with uneven inputs")
            return
        most = max(self._windows, key=self._windows.count, default=0)
        clear = len(self._windows) >= self._enough and 2 * self._windows.count(most) >= len(self._windows)
        if clear and self._problem is None:
            self._problem = self._what_forbids(ddp)
        if ddp.find_unused_parameters and not ddp.static_graph:
            clear = False  # another technique may still switch it off
        (_, bad), (all_clear, _), (least, greatest), (first, last) = agree(
            ddp, [int(self._problem is not None), int(clear), most, self._position]
        )
        if bad:
            self._end(self._problem or "it is not possible on another rank")
        elif all_clear and greatest == 1:
            self._end("each step has only one backward")
        elif all_clear and least == greatest and first == last:
            self._micro_batches = most
            self._end(
                "gradients synchronized once per {backwards} backwards, starting with backward {first} (learned "
                "from {steps} steps on all ranks)",
                {"backwards": most, "first": self._count + 1, "steps": len(self._windows)},
            )
        elif self._count >= LAST_DECISION:
            self._end(self._why_undecided(ddp, least, greatest))
        else:
            self._next_decision *= 2

    def _what_forbids(self, ddp: Any) -> str | None:
        special = why_no_average(ddp)
        if special is not None:
            return special
        for parameter in reduced_parameters(ddp):
            hooks = [
                *(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values(),
                *(parameter._backward_hooks or {}).values(),
            ]
            if any(not _is_ours(hook) for hook in hooks):
                return "parameters have gradient hooks"
            gradient = parameter.grad
            if (
                gradient is not None
                and not ddp.gradient_as_bucket_view
                and gradient.untyped_storage().nbytes() > gradient.numel() * gradient.element_size()
            ):
                return "gradients are parts of a larger tensor"
        place = find_gradient_use()
        return None if place is None else f"the script changes gradients itself ({place})"

    def _why_undecided(self, ddp: Any, least: int, greatest: int) -> str:
        if ddp.find_unused_parameters and not ddp.static_graph:
            return "DDP looks for unused parameters"
        if least != greatest:
            return f"the ranks have {least} to {greatest} backwards per step"
        return (
            "the number of backwards per step varies: "
            f"{', '.join(map(str, self._windows[-8:])) or 'no step was observed'}"
        )

    def _end(self, text: str, values: Mapping[str, Value] | None = None) -> None:
        self._learning = False
        self._reads.remove()
        if values is None:
            for hook in self._hooks:
                hook.remove()
        self._emit(text, values)


def _before_step(rhythm: Rhythm, optimizer: Any, args: Any, kwargs: Any) -> None:
    if any(callable(value) for value in (*args[1:], *kwargs.values())):
        rhythm.closure_given()
    rhythm.before_use(True)


def _is_ours(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).startswith("hotloop.")
