"""compile-optimizer: the optimizer's step compiled into a few kernels."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

from hotloop.apply.compiling import allow_failures, find_missing_compiler
from hotloop.apply.modules import is_inside_compiled_function
from hotloop.apply.optimizer_form import find_own_step
from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

WITHOUT_COUNT = ("SGD", "RMSprop", "Adadelta")
"""Optimizers whose formula does not have the number of the step in it."""


class CompileOptimizer(Technique):
    """
    ## What it does
    Compiles `optimizer.step`: the update of all parameters becomes a few generated kernels. A call with a closure runs
    as before. A scheduled learning rate compiles twice, then torch keeps it as a variable.

    ## When it helps
    On a GPU, optimizers without a fused form (NAdam, RAdam, Adamax, RMSprop, Adadelta). Not measured yet: measure it
    with `hotloop run` before and after.

    ## When it does not
    If a fused form exists, use that: it needs no compiling. On a CPU the generated code is compiled tensor by tensor,
    which takes minutes for large models. Optimizers with their own step are left alone.

    ## Numerics
    Lossy, slightly: when compiled, torch keeps the step count as a float32 tensor and computes `1 - beta ** step` in
    float32, where the plain step uses float64. With beta2 = 0.999 that is 1.3e-5 off for the first thousand steps, so
    AdamW's steps are 6e-6 smaller. Losses of a small language model differed by 8e-7 after 5 steps, all in the same
    direction, 1.7 times what another order of summing may do; over 300 steps they stay within 1e-5. Reordered for SGD,
    RMSprop and Adadelta, whose formula has no step count.
    """

    id = "compile-optimizer"
    summary = "compile the optimizer's step"
    numerics = Numerics.LOSSY
    stage = Stage.OPTIMIZER
    treats = ("slow-optimizer",)
    conflicts = ("fused-optimizer",)
    settings = (Setting(name="backend", kind=str, default="inductor", help="torch.compile's backend"),)

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch
        from torch._dynamo.eval_frame import is_dynamo_supported

        kind = type(optimizer).__name__
        why = find_own_step(optimizer)
        if why is not None:
            return NotApplicable(why=why)
        if kind in ("LBFGS", "SparseAdam"):
            return NotApplicable(why=f"{kind} calls Python or changes shapes inside its step")
        for group in optimizer.param_groups:
            if group.get("fused"):
                return NotApplicable(why="the script sets fused=True: the step is already one kernel")
            if group.get("differentiable"):
                return NotApplicable(why="the script sets differentiable=True")
        before = vars(optimizer).get("step")
        if hasattr(before, "_torchdynamo_orig_callable") or is_inside_compiled_function():
            return NotApplicable(why="the script already compiles the optimizer's step")
        if not is_dynamo_supported():
            return NotApplicable(why="this torch version cannot compile with this Python version")
        backend, device = str(settings["backend"]), optimizer.param_groups[0]["params"][0].device.type
        missing = find_missing_compiler(device) if backend == "inductor" else None
        if missing is not None:
            return NotApplicable(why=missing)
        forbid_failures = allow_failures(fullgraph=False)
        plain = types.MethodType(type(optimizer).step, optimizer)
        compiled: Any = torch.compile(plain, backend=backend)

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._opt_called = True  # what a scheduler's wrapper around the step notes
            if self is not optimizer or args or kwargs:
                return type(self).step(self, *args, **kwargs)
            return compiled()

        # A scheduler wraps optimizer.step.__func__, so it must be a method; it marks what it has wrapped.
        functools.update_wrapper(step, before if before is not None else type(optimizer).step)
        optimizer.step = types.MethodType(step, optimizer)

        def undo() -> None:
            forbid_failures()
            if before is None:
                vars(optimizer).pop("step", None)
            else:
                optimizer.step = before

        numerics = Numerics.REORDERED if kind in WITHOUT_COUNT else None
        text = "compiled {optimizer}.step (backend={backend})"
        return Applied(text=text, values={"optimizer": kind, "backend": backend}, numerics=numerics, undo=undo)
