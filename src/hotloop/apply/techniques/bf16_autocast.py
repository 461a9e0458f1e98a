"""bf16-autocast: forward and loss in bfloat16 where that keeps its accuracy; parameters stay float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Saving, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Stage, Technique


class Bf16Autocast(Technique):
    """
    ## What it does
    Runs the model's forward under `torch.autocast(dtype=torch.bfloat16)`: matrix products and convolutions compute in
    bfloat16, sums and normalisations stay in float32. Parameters, gradients and optimizer state stay float32, and the
    model's outputs are given back as float32, so that a loss outside the model computes as before.

    ## When it helps
    Matrix units compute bfloat16 several times faster. A 10 million parameter transformer went from 328 to 169 ms a
    step on 2 CPU cores with AMX, together with a fused optimizer (docs/claims.md).

    ## When it does not
    Small matrices: the casts cost more than they win (14 to 20 ms on a small model on a CPU). Hardware without
    bfloat16 units. Models that already run under autocast or in another precision.

    ## Numerics
    Lossy: eight bits of mantissa in matrix products. Compare the loss curve.
    """

    id = "bf16-autocast"
    title = "forward in bfloat16 (autocast)"
    numerics = Numerics.LOSSY
    safety = Safety.ASK
    stage = Stage.PRECISION
    treats = ("full-precision",)
    conflicts = ("fp16-autocast", "bf16-parameters")

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        from hotloop.apply.forward import wrap_forward

        parameters = list(model.parameters())
        other = next((p.dtype for p in parameters if p.is_floating_point() and p.dtype != torch.float32), None)
        if other is not None:
            return NotApplicable(why=f"the model has parameters of {other}")
        device = parameters[0].device.type
        if torch.is_autocast_enabled(device):
            return NotApplicable(why="the script uses autocast itself")
        if device == "cuda" and not torch.cuda.is_bf16_supported():
            return NotApplicable(why="this GPU has no bfloat16 units")

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            with torch.autocast(device, dtype=torch.bfloat16):
                return to_float32(call(*args, **kwargs))

        undo = wrap_forward(model, around)
        return Applied(detail=f"forward under autocast({device!r}, bfloat16), outputs in float32", undo=undo)

    def forecast(self, analysis: Any, settings: Mapping[str, Value]) -> Saving | None:
        return None


def to_float32(value: Any) -> Any:
    """The same nested value with its bfloat16 and float16 tensors in float32."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, dict):
        changed = {key: to_float32(one) for key, one in value.items()}
        if type(value) is dict:
            return changed
        for key, one in changed.items():  # model outputs of Hugging Face are dictionaries with attributes
            value[key] = one
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_float32(one) for one in value))
    if type(value) in (list, tuple):
        return type(value)(to_float32(one) for one in value)
    return value


TECHNIQUE = Bf16Autocast()
