"""activation-offload: activations wait for backward in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.apply.forward import wrap_forward
from hotloop.apply.modules import find_compilation, find_replication, is_inside_compiled_function
from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Setting, Stage, Technique


class ActivationOffload(Technique):
    """
    ## What it does
    Copies tensors that backward will need to the host during forward, and back when backward asks for them. Parameters
    and small tensors stay where they are.

    ## When it helps
    GPU memory is full and recomputing would cost more than copying: few operators on large tensors, and a fast link to
    the host. Not measured yet: measure it yourself.

    ## When it does not
    On a CPU there is nowhere to offload to. The copies do not overlap with computation: at 25 GB/s a gigabyte costs 40
    ms each way. Compiled models save their activations inside the graph, out of reach, and nn.DataParallel on several
    GPUs saves them in its own threads.

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
    """Run the model's forward with saved tensors in host memory; answers what takes it back."""
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
