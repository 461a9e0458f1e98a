"""A model and a batch -> the memory that its activations take, with and without computing them again in backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hotloop.apply.forward import wrap_forward
from hotloop.core.errors import HotloopError


class MemoryComparisonError(HotloopError):
    """The two ways to train differ in their loss, or cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationMemory:
    """Memory of one step. ``saved_bytes``: tensors that the forward keeps for backward, each storage counted once,
    parameters and buffers not. ``peak_bytes``: the accelerator's peak above what the model holds; None on a CPU."""

    saved_bytes: int
    peak_bytes: int | None
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComparison:
    """``blocks_count``: modules whose activations are computed again. The losses are equal in every bit."""

    plain: ActivationMemory
    recomputed: ActivationMemory
    blocks_count: int


def compare_memory(
    build: Callable[[], nn.Module],
    batch: Any,
    *,
    loss_of: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    recompute: Callable[[nn.Module], int] | None = None,
    seed: int = 0,
) -> MemoryComparison:
    """What one training step keeps in memory, as the model is and with its repeated blocks recomputed.

    ``build()`` answers the model, on its device; it is called twice, under the same seed. ``loss_of(model, batch)``
    answers a scalar; by default the mean square of what ``model(batch)`` gives (a mapping is passed as keywords).
    ``recompute(model)`` switches recomputation on and answers for how many modules (default: ``recompute_blocks``).

    >>> def build(): return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)))
    >>> compared = compare_memory(build, torch.ones(16, 8))
    >>> compared.blocks_count, compared.recomputed.saved_bytes < compared.plain.saved_bytes
    (4, True)

    Random states of the caller are left as they were. Raises MemoryComparisonError when the losses differ.
    """
    loss_function = _mean_square if loss_of is None else loss_of
    plain, _ = _measure(build, batch, loss_function, lambda model: 0, seed)
    again, blocks_count = _measure(build, batch, loss_function, recompute or recompute_blocks, seed)
    if blocks_count == 0:
        raise MemoryComparisonError("no activations were recomputed; give recompute= for this model")
    if plain.loss != again.loss:
        raise MemoryComparisonError(
            f"the loss is {plain.loss!r} without and {again.loss!r} with recomputation: the model draws random "
            "numbers or changes state, which a second forward does not reproduce"
        )
    return MemoryComparison(plain=plain, recomputed=again, blocks_count=blocks_count)


def recompute_blocks(model: nn.Module) -> int:
    """Recompute the outermost repeated blocks: members of a ModuleList or Sequential with two or more of one class.

    Members without parameters (an activation function) are left alone. Answers how many blocks there are.
    """
    blocks: list[nn.Module] = []
    _collect_blocks(model, blocks)
    for block in blocks:
        wrap_forward(block, _checkpointed)
    return len(blocks)


def _collect_blocks(module: nn.Module, blocks: list[nn.Module]) -> None:
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        members = [one for one in module if isinstance(one, nn.Module) and list(one.parameters())]
        kinds = [type(one) for one in members]
        # Single layers keep little more than their input, which recomputation keeps too.
        alike = [one for one in members if kinds.count(type(one)) > 1 and len(list(one.modules())) > 1]
        if alike:
            blocks.extend(alike)
            return
    for child in module.children():
        _collect_blocks(child, blocks)


def _checkpointed(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(call, *args, use_reentrant=False, **kwargs)


def _measure(
    build: Callable[[], nn.Module],
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    recompute: Callable[[nn.Module], int],
    seed: int,
) -> tuple[ActivationMemory, int]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        model.train()
        blocks_count = recompute(model)
        own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
        device = next(iter(model.parameters())).device
        kept: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    kept[storage.data_ptr()] = storage  # kept alive, so that an address is not counted twice
            return tensor

        base_bytes = _start_peak(device)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(model, batch)
        saved_bytes = sum(storage.nbytes() for storage in kept.values())
        kept.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        peak_bytes = None
        if base_bytes is not None:
            peak_bytes = int(torch.get_device_module(device).max_memory_allocated(device)) - base_bytes
        return ActivationMemory(saved_bytes=saved_bytes, peak_bytes=peak_bytes, loss=loss.item()), blocks_count


def _start_peak(device: torch.device) -> int | None:
    """Bytes in use now, with the peak set back to them; None where the device keeps no peak (the CPU, MPS)."""
    module = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated"):
        return None
    module.synchronize(device)
    module.reset_peak_memory_stats(device)
    return int(module.memory_allocated(device))


def _mean_square(model: nn.Module, batch: Any) -> torch.Tensor:
    output = model(**batch) if isinstance(batch, Mapping) else model(batch)
    if not isinstance(output, torch.Tensor):
        raise MemoryComparisonError(
            f"the model returns {type(output).__name__}: give loss_of=, a function of model and batch to a scalar"
        )
    return output.float().pow(2).mean()
