"""A model -> what several techniques ask of it: the part inside wrappers, its repeated blocks, whether it compiles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

BUFFER_CHANGERS = ("_NormBase", "_SpectralNorm")
"""Classes whose forward changes their buffers while training: batch and instance norm, spectral norm."""


def unwrap(model: Any) -> Any:
    """The script's own module inside DistributedDataParallel; every other model as it is."""
    return model.module if any(cls.__name__ == "DistributedDataParallel" for cls in type(model).__mro__) else model


def is_sharded(module: Any) -> bool:
    """Whether ``fully_shard`` (FSDP2) made it one of its units."""
    return any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__)


def find_replication(model: Any) -> str | None:
    """Why a model in nn.DataParallel on several GPUs is left alone; None for every other model.

    Its copies carry what was put on a module, bound to the original on the first GPU, and they run in threads of their
    own, which autocast's dtype and hooks on saved tensors do not reach.
    """
    for part in model.modules():
        count = len(getattr(part, "device_ids", None) or ())
        if count > 1 and any(cls.__name__ == "DataParallel" for cls in type(part).__mro__):
            return (
                f"nn.DataParallel runs copies of the model on {count} GPUs in threads that this technique cannot reach"
            )
    return None


def find_blocks(model: Any, wanted: str | None = None) -> list[Any]:
    """Modules of one class that the model repeats (at least twice), outermost ones, in the model's order.

    The class is ``wanted``, or that whose instances hold most parameters among those which lists of modules hold.
    """
    if wanted is not None:
        return list(_outermost(model, wanted))
    weights: dict[str, int] = {}
    members: dict[str, list[Any]] = {}
    for parent in model.modules():
        if type(parent).__name__ not in ("ModuleList", "Sequential", "ModuleDict"):
            continue
        for child in parent.children():
            count = sum(p.numel() for p in child.parameters())
            if count and next(child.children(), None) is not None:
                name = type(child).__name__
                weights[name] = weights.get(name, 0) + count
                members.setdefault(name, []).append(child)
    repeated = [name for name, found in members.items() if len({id(one) for one in found}) > 1]
    if not repeated:
        return []
    return list(_outermost(model, max(repeated, key=lambda name: weights[name])))


def _outermost(module: Any, name: str) -> Iterator[Any]:
    seen: set[int] = set()
    waiting = list(module.children())  # the model itself is no block of its own
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one).__name__ == name:
            yield one
        else:
            waiting = list(one.children()) + waiting


def find_buffer_changer(module: Any) -> str | None:
    """The class of a part whose forward changes its own buffers while training, where the class shows that."""
    for part in module.modules():
        if any(cls.__name__ in BUFFER_CHANGERS for cls in type(part).__mro__):
            tracks = getattr(part, "track_running_stats", True)
            if tracks:
                return type(part).__name__
        if any(type(hook).__name__ == "SpectralNorm" for hook in part._forward_pre_hooks.values()):
            return f"{type(part).__name__} with spectral_norm"
    return None


def find_compilation(model: Any) -> str | None:
    """How the script compiles this model or a part of it; None when it does not."""
    for name, part in model.named_modules():
        shown = f"its submodule {name}" if name else "the model"
        if type(part).__name__ == "OptimizedModule":
            return f"the script compiles {shown} with torch.compile"
        if vars(part).get("_compiled_call_impl") is not None:
            return f"the script compiles {shown} with Module.compile"
        if hasattr(vars(part).get("forward"), "_torchdynamo_orig_callable"):
            return f"the script compiles the forward of {shown}"
        if hasattr(type(part).forward, "_torchdynamo_orig_callable"):
            return f"the script compiles the forward of class {type(part).__name__}"
    return None


def is_inside_compiled_function() -> bool:
    """Whether some caller of this frame is a function that torch.compile made."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
