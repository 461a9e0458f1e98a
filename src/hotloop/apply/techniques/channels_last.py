"""channels-last: weights and images of convolutional networks with their channels side by side in memory."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from hotloop.apply.modules import find_replication
from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable, Stage, Technique

LBFGS = "LBFGS needs contiguous gradients"


class ChannelsLast(Technique):
    """
    ## What it does
    Lays out the 4-dimensional weights as `torch.channels_last`, before DistributedDataParallel makes its buckets, and
    passes 4-dimensional inputs to the model in that layout. Gradients and optimizer state of these weights follow, also
    after a checkpoint is loaded. Outputs, input gradients and the optimizer's `state_dict` come back contiguous, as
    does what a script gives to safetensors, so code outside the model sees no change. A forward that fails (a `view`
    that needs contiguous channels) is rerun as it was, and the model is left alone from then on.

    ## When it helps
    Convolutional networks under bfloat16 or float16 autocast, or with TF32, on GPUs with tensor cores, whose
    convolutions need this layout: without it, each one transposes its input and output. oneDNN's CPU kernels support it
    too.

    ## When it does not
    Networks without 2-dimensional convolutions, or with few channels. On a CPU oneDNN chooses layouts by itself and
    leaves little to save: a network of five convolutions and batch norms took 30.8 instead of 33.6 CPU-ms per forward
    and backward in float32, 18.7 instead of 19.2 under bfloat16 autocast (one core of an AMD EPYC with avx512_bf16,
    torch 2.13, least of 15 interleaved pairs). Not measured on a GPU yet.

    Left alone: a model that is in this layout already, or by API in DistributedDataParallel already; one whose
    optimizer is LBFGS, or whose script calls `view` on weights or gradients (`p.grad.view(-1)`) or
    `parameters_to_vector`, which need contiguous tensors. The model's own `state_dict` keeps the weights' layout; by
    API, give safetensors contiguous copies.

    ## Numerics
    Reordered: other kernels sum the same products in another order.
    """

    id = "channels-last"
    summary = "run convolutions in the channels-last memory format"
    effort = "easy"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.LAYOUT

    functions = ("safetensors.torch:save_file", "safetensors.torch:save")

    def change_ddp(self, arguments: dict[str, Any], settings: Mapping[str, Value], context: Context) -> Effect:
        module = arguments.get("module")
        if module is None:
            return None
        why = _why_not(module, context)
        if why is not None:
            return NotApplicable(why=why)
        count, undo = _lay_out(module, context.memory(self.id))
        context.memory(self.id).setdefault("laid", []).append(module)
        text = "{weights} weights converted to channels_last before DistributedDataParallel"
        return Applied(text=text, values={"weights": count}, undo=undo)

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from torch.nn.parallel import DistributedDataParallel

        from hotloop.apply.forward import wrap_forward
        from hotloop.apply.forward_fallback import on_trial

        memory = context.memory(self.id)
        is_laid = isinstance(model, DistributedDataParallel) and any(
            one is model.module for one in memory.get("laid", ())
        )
        if isinstance(model, DistributedDataParallel) and not is_laid:
            return NotApplicable(
                why="DistributedDataParallel already created its buckets; pass the model before it is wrapped"
            )
        why = None if is_laid else _why_not(model, context)
        if why is not None:
            return NotApplicable(why=why)
        count, undo_weights = (0, _nothing) if is_laid else _lay_out(model, memory)
        for optimizer in context.optimizers():
            _follow(optimizer, memory)

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            args = tuple(_channels_last(one) for one in args)
            kwargs = {key: _channels_last(one) for key, one in kwargs.items()}
            return _contiguous(call(*args, **kwargs))

        def give_up(why: str) -> None:
            undo()
            context.report(self.id, NotApplicable(why=f"reverted: the forward failed: {why}"))

        undo_forward = wrap_forward(model, on_trial(model, around, give_up))

        def undo() -> None:
            undo_forward()
            undo_weights()

        text = "inputs in channels_last" if is_laid else "{weights} weights and the inputs in channels_last"
        return Applied(text=text, values={} if is_laid else {"weights": count}, undo=undo)

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        """One that was built after the model's first forward, or by API after the model was changed."""
        memory = context.memory(self.id)
        if _is_lbfgs_of(optimizer, memory.get("weights", ())):
            for take_back in memory["undo"]:
                take_back()
            return NotApplicable(why=f"reverted: {LBFGS}")
        _follow(optimizer, memory)
        return None

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        """safetensors refuses what is not contiguous."""
        tensors = call.args[0] if call.args else call.kwargs.get("tensors")
        if context.memory(self.id).get("weights") and isinstance(tensors, dict):
            given = {key: _contiguous(one) for key, one in tensors.items()}
            if call.args:
                call.args = (given, *call.args[1:])
            else:
                call.kwargs["tensors"] = given
        return None


def _nothing() -> None:
    """The weights were laid out before DistributedDataParallel."""


def _why_not(model: Any, context: Context) -> str | None:
    import torch
    from torch import nn

    from hotloop.apply.layout import flat_use_line
    from hotloop.apply.user_code import find_in_user_code

    convolutions = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
    if not convolutions:
        return "the model has no 2-dimensional convolution"
    if any("FSDP" in type(one).__name__ or "FullySharded" in type(one).__name__ for one in model.modules()):
        return "the model is sharded, so its weights are no longer 4-dimensional"
    replicated = find_replication(model)
    if replicated is not None:
        return replicated
    wide = [
        m.weight for m in convolutions if m.weight.dim() == 4 and m.weight.shape[1] > 1 and m.weight[0, 0].numel() > 1
    ]
    if wide and all(w.is_contiguous(memory_format=torch.channels_last) for w in wide):
        return "the weights are already in channels_last"
    ours = {id(p) for p in model.parameters()}
    for optimizer in context.optimizers():
        if _is_lbfgs_of(optimizer, ours):
            return LBFGS
    place = find_in_user_code((b"view", b"parameters_to_vector"), flat_use_line)
    return None if place is None else f"the script assumes contiguous weights or gradients ({place})"


def _lay_out(model: Any, memory: dict[str, Any]) -> tuple[int, Any]:
    """Lay the model's 4-dimensional parameters out in place; how many, and what takes it back."""
    import torch

    from hotloop.apply.layout import order_parameters, order_state

    changed = [p for p in model.parameters() if p.dim() == 4 and not p.is_contiguous(memory_format=torch.channels_last)]
    order_parameters(changed, torch.channels_last)
    weights = memory.setdefault("weights", {})
    weights.update({id(p): p for p in changed})

    def undo() -> None:
        for p in changed:
            weights.pop(id(p), None)
        order_parameters(changed, torch.contiguous_format)
        for optimizer in memory.get("followed", ()):
            order_state(optimizer, changed)

    memory.setdefault("undo", []).append(undo)
    return len(changed), undo


def _is_lbfgs_of(optimizer: Any, weights: Container[int]) -> bool:
    return type(optimizer).__name__ == "LBFGS" and any(id(p) in weights for p in _held_by(optimizer))


def _follow(optimizer: Any, memory: dict[str, Any]) -> None:
    """Keep the optimizer's state in the order of the weights, and what ``state_dict`` gives contiguous."""
    import weakref

    from hotloop.apply.layout import order_state

    weights = memory.setdefault("weights", {})
    followed = memory.setdefault("followed", weakref.WeakSet())
    if optimizer in followed or not any(id(p) in weights for p in _held_by(optimizer)):
        return
    followed.add(optimizer)

    def follow(one: Any) -> None:
        order_state(one, [p for p in _held_by(one) if id(p) in weights])

    def show(one: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        pairs = zip(state_dict["param_groups"], one.param_groups, strict=False)
        laid = {
            key
            for saved, group in pairs
            for key, p in zip(saved["params"], group["params"], strict=False)
            if id(p) in weights
        }
        state = {key: _contiguous(value) if key in laid else value for key, value in state_dict["state"].items()}
        return {**state_dict, "state": state}

    follow(optimizer)
    optimizer.register_state_dict_post_hook(show)
    optimizer.register_load_state_dict_post_hook(follow)


def _held_by(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _channels_last(value: Any) -> Any:
    import torch

    return _as(value, torch.channels_last)


def _as(value: Any, layout: Any) -> Any:
    """Images (also in lists, tuples and plain dictionaries) in the layout; everything else as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.dim() != 4 or not value.is_floating_point() or value.layout != torch.strided:
            return value
        if value.requires_grad and torch.is_grad_enabled() and layout == torch.channels_last:
            from hotloop.apply.layout import ToChannelsLast

            return ToChannelsLast.apply(value)  # type: ignore[no-untyped-call]
        return value.contiguous(memory_format=layout)
    if type(value) in (list, tuple):
        return type(value)(_as(one, layout) for one in value)
    if type(value) is dict:
        return {key: _as(one, layout) for key, one in value.items()}
    return value


def _contiguous(value: Any) -> Any:
    import torch

    return _as(value, torch.contiguous_format)
