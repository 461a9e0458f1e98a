"""bf16-parameters: weights, their gradients and optimizer state in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.core.findings import Numerics, Safety
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Setting, Stage, Technique

SAVED_BYTES = 2
"""Saving for each weight and its gradient, without optimizer state: 8 bytes in float32."""


class Bf16Parameters(Technique):
    """
    ## What it does
    Stores the weight matrices (parameters of two or more dimensions) in bfloat16 and runs the forward under bfloat16
    autocast, with float32 outputs; a part of the model that is called outside that forward (`model.decode(z)`) also
    runs under autocast. The gradients and optimizer state of these weights are bfloat16 too. Biases, normalizations,
    recurrent layers, parametrized weights and buffers stay float32.

    bfloat16 loses small updates, namely those below a 512th of the weight. The technique therefore keeps the lower half
    of every weight's float32 value in the optimizer's state, and loses no update. With AdamW, a float32 weight takes 16
    bytes (weight, gradient, two moments), and a weight under this technique 10; `state = "float32"` adds 4. Each step
    runs the optimizer's own code on float32 copies, about 4 million weights at a time, and rounds bfloat16 state at
    random.

    ## When it helps
    It helps if memory is short, or if reading weights takes longer than computing with them: with small batches, large
    embeddings or wide layers. Autocast keeps float32 weights and makes bfloat16 copies of them in every forward.

    The finer updates cost a fixed time per step, whatever the batch size. With fused AdamW on one core (avx512_bf16)
    and only 512 tokens per step, a 10 million parameter transformer took, relative to autocast, 1.17 [1.12, 1.23] of
    the time with float32 state, and 1.60 [1.53, 1.66] with bfloat16 state (n = 8). On a CPU, use float32 state and
    larger batches. The technique has not been measured on a GPU yet.

    ## When it does not
    It does not apply to models that are already wrapped in DistributedDataParallel or FSDP (pass the model before you
    wrap it), to LBFGS, to models in another dtype, or under the script's own autocast. It needs one of torch's
    elementwise optimizers that is not `capturable`. It does
    not apply to models of which an `AveragedModel`, or another module that holds a copy, already exists, because torch
    cannot average both dtypes. Code outside the model that uses a weight (a loss that multiplies by
    `model.head.weight`) gets bfloat16. From then on, the model's checkpoints hold bfloat16 weights, and the optimizer's
    hold the lower halves.

    ## Numerics
    Lossy: operators compute in bfloat16, as under autocast, and micro-batch gradients are summed in it. For a small
    language model trained for 1,000 steps with a falling learning rate, the mean loss of the last 100 steps was 0.2629
    in float32 and under autocast, and 0.2629 with this technique (2 seeds). Over 300 steps, the loss (1.788) stays in
    the range of 5 float32 seeds (1.768 to 1.793).
    """

    id = "bf16-parameters"
    summary = "store weights, gradients and optimizer state in bfloat16"
    numerics = Numerics.LOSSY
    safety = Safety.SHOW
    stage = Stage.PRECISION
    is_probed = True
    memory = MemorySaving(what="half the size of weights, gradients and optimizer state")
    treats = ("full-precision", "memory-pressure")
    conflicts = ("bf16-autocast", "fp16-autocast", "zero-optimizer")
    settings = (
        Setting(
            name="least_elements",
            kind=int,
            default=0,
            least=0,
            most=1 << 40,
            help="keep parameters with fewer elements in float32",
        ),
        Setting(
            name="state",
            kind=str,
            default="bfloat16",
            choices=("bfloat16", "float32"),
            help="dtype of the optimizer's state; bfloat16 is rounded stochastically",
        ),
    )

    def change_model(self, model: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        import torch

        from hotloop.change.apply.narrow_updates import join_float32, split_float32
        from hotloop.change.apply.precision import autocast_forward, autocast_part, device_of, why_not_autocast

        why = why_not_autocast(model, None) or _why_not(model, context)
        if why is not None:
            return NotApplicable(why=why)
        device = device_of(model)
        if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return NotApplicable(why="this GPU has no bfloat16 units")
        chosen = [p for p in _weights(model) if p.numel() >= int(settings["least_elements"])]
        if not chosen:
            return NotApplicable(why="the model has no weight matrix that could be stored in bfloat16")
        rests = {}
        for p in chosen:
            near, rests[id(p)] = split_float32(p.detach())
            _put(p, near)

        def back(reason: str) -> None:
            for undo_forward in undo_forwards:
                undo_forward()
            for p in chosen:
                if p.dtype == torch.bfloat16:
                    _put(p, join_float32(p.detach(), rests.get(id(p))))
            rests.clear()
            if reason:
                context.report(self.id, NotApplicable(why=f"reverted: the forward failed: {reason}"))

        ours = {id(p) for p in chosen}
        undo_forwards = [autocast_forward(model, torch.bfloat16, back)]
        undo_forwards += [
            autocast_part(part, device, torch.bfloat16, back)
            for part in model.modules()
            if part is not model and any(id(p) in ours for p in part.parameters(recurse=False))
        ]
        memory = context.memory(self.id)
        memory.setdefault("cast", []).append(_Cast(parameters=chosen, rests=rests, back=lambda: back("")))
        for optimizer in context.optimizers():
            if optimizer in memory.get("asked", ()):  # it was used before this model was
                context.report(self.id, self._attach(optimizer, settings, context))
        bytes_count = sum(p.numel() for p in chosen) * SAVED_BYTES
        return Applied(
            text="{matrices} weight matrices in bfloat16 ({saved_mib:.1f} MiB less with gradients), "
            "forward under autocast({device!r}, bfloat16), outputs in float32",
            values={"matrices": len(chosen), "saved_mib": bytes_count / 2**20, "device": device},
            undo=lambda: back(""),
        )

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        import weakref

        context.memory(self.id).setdefault("asked", weakref.WeakSet()).add(optimizer)
        return self._attach(optimizer, settings, context)

    def _attach(self, optimizer: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        """Make its updates of weights that were cast as fine as the settings ask for; take the cast back if not."""
        import torch

        from hotloop.change.apply.narrow_updates import NarrowUpdates, why_not_narrow

        memory = context.memory(self.id)
        taken: set[int] = memory.setdefault("taken", set())
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        casts = [one for one in memory.get("cast", ()) if any(id(p) in held for p in one.parameters)]
        mine = [p for one in casts for p in one.parameters if id(p) in held and p.dtype == torch.bfloat16]
        if not mine:
            return None
        why = why_not_narrow(optimizer)
        if why is None and any(id(p) in taken for p in mine):
            why = "another optimizer updates the same weights"
        if why is not None:
            for one in casts:
                one.back()
            return NotApplicable(why=f"reverted: {why}")
        rests = {id(p): one.rests.pop(id(p)) for one in casts for p in one.parameters if id(p) in one.rests}
        dtype = torch.bfloat16 if settings["state"] == "bfloat16" else torch.float32
        updates = NarrowUpdates(optimizer, mine, rests, dtype)
        taken.update(id(p) for p in mine)

        def undo() -> None:
            left = updates.remove()
            for one in casts:
                one.rests.update({id(p): left[id(p)] for p in one.parameters if id(p) in left})
            taken.difference_update(id(p) for p in mine)

        text = (
            "updates of {matrices} weight matrices in float32, weights kept with their lower halves, state in {state}"
        )
        return Applied(text=text, values={"matrices": len(mine), "state": settings["state"]}, undo=undo)


def _why_not(model: Any, context: Context) -> str | None:
    from torch.nn.parallel import DistributedDataParallel

    from hotloop.change.apply.narrow_updates import why_not_narrow

    if isinstance(model, DistributedDataParallel):
        return "DistributedDataParallel already created its float32 buckets; pass the model before it is wrapped"
    if any("FSDP" in type(one).__name__ or "FullySharded" in type(one).__name__ for one in model.modules()):
        return "the model is sharded; use FSDP's own mixed precision"
    holder = _find_holder_of_copy(model)
    if holder is not None:
        return f"{holder} contains a float32 copy of the model, and torch cannot average the two dtypes"
    ours = {id(p) for p in model.parameters()}
    for optimizer in context.optimizers():
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if not any(id(p) in ours for p in held):
            continue
        if type(optimizer).__name__ == "LBFGS":
            return "LBFGS needs one dtype for all parameters"
        why = why_not_narrow(optimizer)
        if why is not None:
            return why
    return None


def _find_holder_of_copy(model: Any) -> str | None:
    """The class of a live module that holds another model of this class and these shapes, and no other part.

    So do torch's AveragedModel and others' wrappers for a moving average.
    """
    import gc

    from torch import nn
    from torch.optim.swa_utils import AveragedModel

    shapes = [p.shape for p in model.parameters()]
    for one in gc.get_objects():
        if not issubclass(type(one), nn.Module):
            continue
        if type(one).__module__.startswith("torch.") and not isinstance(one, AveragedModel):
            continue
        held = list((vars(one).get("_modules") or {}).values())
        if len(held) != 1 or held[0] is model or type(held[0]) is not type(model):
            continue
        if [p.shape for p in held[0].parameters()] == shapes:
            return type(one).__name__
    return None


def _weights(model: Any) -> list[Any]:
    """Parameters of two or more dimensions, each once, that autocast's operators take in bfloat16."""
    from torch import nn
    from torch.nn.utils import parametrize

    found: dict[int, Any] = {}
    kept: set[int] = set()
    for name, module in model.named_modules():
        is_kept = (
            isinstance(module, (nn.RNNBase, nn.RNNCellBase))
            or "Norm" in type(module).__name__
            or parametrize.is_parametrized(module)
            or "parametrizations" in name.split(".")
        )
        for p in module.parameters(recurse=False):
            if is_kept:
                kept.add(id(p))
            elif p.dim() >= 2 and p.is_floating_point():
                found[id(p)] = p
    return [p for key, p in found.items() if key not in kept]


def _put(p: Any, value: Any) -> None:
    """The same Parameter object with this value and its dtype, and its gradient, where there is one, in that dtype."""
    gradient, p.grad = p.grad, None
    p.data = value
    if gradient is not None:
        p.grad = gradient.to(value.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast:
    """A model's weights that were cast. ``rests`` by id, until an optimizer takes them."""

    parameters: list[Any]
    rests: dict[int, Any]
    back: Callable[[], None]
