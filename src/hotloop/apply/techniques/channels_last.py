"""channels-last: weights and images of convolutional networks with their channels side by side in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Stage, Technique


class ChannelsLast(Technique):
    """
    ## What it does
    Lays the 4-dimensional weights out as `torch.channels_last`, before DistributedDataParallel makes its buckets where
    there is one, and gives the model its 4-dimensional inputs in that layout. Outputs come back contiguous, so that
    code outside the model sees what it saw. A forward that fails (a `view` that needs contiguous channels) is run
    again as it was, and the model is left alone from then on.

    ## When it helps
    Convolutional networks under bfloat16 or float16 autocast, or with TF32, on GPUs with tensor cores, whose
    convolutions want this layout: without it every one of them transposes its input and output. oneDNN's kernels on a
    CPU know it too.

    ## When it does not
    Networks without 2-dimensional convolutions, or with few channels. On a CPU oneDNN chooses layouts by itself, and
    little is left to win: a network of five convolutions and batch norms took 30.8 in place of 33.6 CPU-ms a forward
    and backward in float32, 18.7 in place of 19.2 under bfloat16 autocast (one core of an AMD EPYC with avx512_bf16,
    torch 2.13, least of 15 interleaved pairs). No figure of a GPU was measured here yet. A model that is in
    DistributedDataParallel already when it is given by API, or in this layout already, is left alone.

    ## Numerics
    Reordered: other kernels sum the same products in another order.
    """

    id = "channels-last"
    title = "convolutions with channels side by side in memory"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.LAYOUT

    def change_ddp(self, arguments: dict[str, Any], settings: Mapping[str, Value], context: Context) -> Effect:
        module = arguments.get("module")
        if module is None:
            return None
        why = _why_not(module)
        if why is not None:
            return NotApplicable(why=why)
        count, undo = _lay_out(module)
        context.memory(self.id).setdefault("laid", []).append(module)
        return Applied(detail=f"{count} weights as channels_last before DistributedDataParallel", undo=undo)

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from hotloop.apply.forward import wrap_forward
        from hotloop.apply.trial import on_trial

        laid = context.memory(self.id).get("laid", ())
        is_laid = isinstance(model, DistributedDataParallel) and any(one is model.module for one in laid)
        if isinstance(model, DistributedDataParallel) and not is_laid:
            return NotApplicable(
                why="DistributedDataParallel has made its buckets; give the model before it is wrapped"
            )
        why = None if is_laid else _why_not(model)
        if why is not None:
            return NotApplicable(why=why)
        count, undo_weights = (0, _nothing) if is_laid else _lay_out(model)

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            args = tuple(_as(one, torch.channels_last) for one in args)
            kwargs = {key: _as(one, torch.channels_last) for key, one in kwargs.items()}
            return _contiguous(call(*args, **kwargs))

        def give_up(why: str) -> None:
            undo()
            context.report(self.id, NotApplicable(why=f"taken back, the forward failed: {why}"))

        undo_forward = wrap_forward(model, on_trial(model, around, give_up))

        def undo() -> None:
            undo_forward()
            undo_weights()

        weights = "inputs" if is_laid else f"{count} weights and the inputs"
        return Applied(detail=f"{weights} as channels_last", undo=undo)


def _nothing() -> None:
    """The weights were laid out before DistributedDataParallel."""


def _why_not(model: Any) -> str | None:
    import torch
    from torch import nn

    convolutions = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
    if not convolutions:
        return "the model has no 2-dimensional convolution"
    if any("FSDP" in type(one).__name__ or "FullySharded" in type(one).__name__ for one in model.modules()):
        return "the model is sharded: its weights are no longer 4-dimensional"
    wide = [
        m.weight for m in convolutions if m.weight.dim() == 4 and m.weight.shape[1] > 1 and m.weight[0, 0].numel() > 1
    ]
    if wide and all(w.is_contiguous(memory_format=torch.channels_last) for w in wide):
        return "the weights are channels_last already"
    return None


def _lay_out(model: Any) -> tuple[int, Any]:
    """Lay the model's 4-dimensional parameters out in place; how many, and what takes it back."""
    import torch

    changed = [p for p in model.parameters() if p.dim() == 4 and not p.is_contiguous(memory_format=torch.channels_last)]
    for p in changed:
        p.data = p.data.contiguous(memory_format=torch.channels_last)

    def undo() -> None:
        for p in changed:
            p.data = p.data.contiguous()

    return len(changed), undo


def _as(value: Any, layout: Any) -> Any:
    """Images (also in lists, tuples and plain dictionaries) in the layout; everything else as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        is_image = value.dim() == 4 and value.is_floating_point() and value.layout == torch.strided
        return value.contiguous(memory_format=layout) if is_image else value
    if type(value) in (list, tuple):
        return type(value)(_as(one, layout) for one in value)
    if type(value) is dict:
        return {key: _as(one, layout) for key, one in value.items()}
    return value


def _contiguous(value: Any) -> Any:
    import torch

    return _as(value, torch.contiguous_format)


TECHNIQUE = ChannelsLast()
