"""activation-offload and optimizer-state-offload: what waits in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hotloop.change.apply.forward import wrap_forward
from hotloop.change.apply.modules import find_compilation, find_replication, is_inside_compiled_function
from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Setting, Stage, Technique


class ActivationOffload(Technique):
    """
    ## What it does
    During forward, copies tensors that backward will need to the host, and copies them back when backward asks for
    them. Parameters and small tensors stay on the device.

    ## When it helps
    It helps if GPU memory is full and recomputing would cost more than copying, that is, with few operators on large
    tensors and a fast link to the host. It has not been measured yet: measure it on your model.

    ## When it does not
    On a CPU, there is no other memory to use. The copies do not overlap with computation: at 25 GB/s, a gigabyte costs
    40 ms in each direction. Compiled models save their activations inside the graph, where hotloop cannot reach them,
    and nn.DataParallel on several GPUs saves them in its own threads.

    ## Numerics
    Exact: the same bits come back.
    """

    id = "activation-offload"
    summary = "keep activations in host memory until backward needs them"
    numerics = Numerics.EXACT
    stage = Stage.ACTIVATIONS
    memory = MemorySaving(what="activations, which are moved to the host", needs="an accelerator")
    treats = ("memory-pressure",)
    conflicts = ("compile-model",)
    settings = (
        Setting(name="least_bytes", kind=int, default=1 << 20, least=0, help="smaller tensors stay on the device"),
        Setting(name="pin_memory", kind=bool, default=True, help="copy to page-locked memory, which is faster"),
    )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        device = next(model.parameters()).device.type
        if device == "cpu":
            return NotApplicable(why="the model is on the CPU, so there is nothing to offload")
        if find_compilation(model) is not None or is_inside_compiled_function():
            return NotApplicable(why="the script compiles the model, whose saved activations cannot be moved")
        replicated = find_replication(model)
        if replicated is not None:
            return NotApplicable(why=replicated)
        undo = offload(model, int(settings["least_bytes"]), bool(settings["pin_memory"]))  # type: ignore[arg-type]
        text = "activations of {least_bytes} bytes and more are kept on the host until backward"
        return Applied(text=text, values={"least_bytes": settings["least_bytes"]}, undo=undo)


def offload(model: Any, least_bytes: int, pin_memory: bool) -> Any:
    """Run the model's forward with saved tensors in host memory; returns a function that undoes it."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    def pack(tensor: Any) -> Any:
        owner = tensor if tensor._base is None else tensor._base
        if isinstance(owner, torch.nn.Parameter) or tensor.numel() * tensor.element_size() < least_bytes:
            return tensor
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or 0 in tensor.stride():
            return tensor  # an expanded tensor would come back as large as it looks
        copy = torch.empty_like(tensor, device="cpu", pin_memory=pin_memory)
        copy.copy_(tensor.detach())
        return (tensor.device, copy)

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        device, copy = packed
        return copy.to(device, non_blocking=pin_memory)

    def around(call: Any, args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        with saved_tensors_hooks(pack, unpack):
            return call(*args, **kwargs)

    return wrap_forward(model, around)


class OptimizerStateOffload(Technique):
    """
    ## What it does
    Moves the optimizer's state to pinned host memory after every step and back to the accelerator before the next one,
    so that forward and backward can use its memory. Parameters and gradients stay on the device.

    ## When it helps
    It helps if memory peaks in forward or backward and the state is large in comparison: Adam's state takes 8 bytes per
    float32 parameter (202.5 MB at 25 million parameters).

    ## When it does not
    The state crosses the bus twice per step, and all of it is on the accelerator during the optimizer's step. Guides
    report that offloading in general makes training 20 to 30 % slower; this technique has not been measured on a GPU.
    With several ranks, zero-optimizer saves more and costs less. On a CPU, there is nothing to move.

    ## Numerics
    Exact: the bytes are only copied.
    """

    id = "optimizer-state-offload"
    summary = "keep the optimizer's state in host memory"
    effort = "hard"
    numerics = Numerics.EXACT
    stage = Stage.OPTIMIZER
    memory = MemorySaving(what="optimizer state, which is moved to the host", needs="an accelerator")
    treats = ("memory-pressure",)
    conflicts = ("zero-optimizer",)

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        kinds = {p.device.type for p in parameters}
        if kinds != {"cuda"}:
            return NotApplicable(why=f"the parameters are on {', '.join(sorted(kinds))}, so there is nothing to move")
        if any(group.get("capturable") for group in optimizer.param_groups):
            return NotApplicable(why="capturable=True is set, and a captured step keeps the addresses of its state")
        if not type(optimizer).__module__.startswith("torch.optim."):
            return NotApplicable(why=f"{type(optimizer).__name__} may store its state in another place")
        from torch.distributed.tensor import DTensor

        if any(isinstance(p, DTensor) for p in parameters):
            return NotApplicable(why="the parameters are sharded; use cpu_offload of fsdp2")
        if not hasattr(optimizer, "register_step_post_hook"):
            return NotApplicable(why="the optimizers of this torch version have no step hooks")
        buffers: dict[tuple[int, str], Any] = {}
        handles = (
            optimizer.register_step_pre_hook(to_device),
            optimizer.register_step_post_hook(partial(to_host, buffers)),
        )

        def undo() -> None:
            for handle in handles:
                handle.remove()
            to_device(optimizer)

        text = "state of {parameters} parameters in host memory between steps"
        return Applied(text=text, values={"parameters": len(parameters)}, undo=undo)


def to_device(optimizer: Any, *_: Any) -> None:
    """Before a step: each state tensor that has its parameter's shape goes to its parameter's device."""
    import torch

    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.device != parameter.device:
                state[key] = value.to(parameter.device, non_blocking=True)


def to_host(buffers: dict[tuple[int, str], Any], optimizer: Any, *_: Any) -> None:
    """After a step: into pinned memory that is kept, and waited for, so that a checkpoint never reads half a copy."""
    import torch

    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.device.type == "cuda":
                place = (id(parameter), key)
                buffer = buffers.get(place)
                if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                    buffer = buffers[place] = torch.empty_like(value, device="cpu", pin_memory=True)
                state[key] = buffer.copy_(value, non_blocking=True)
    torch.cuda.synchronize()
