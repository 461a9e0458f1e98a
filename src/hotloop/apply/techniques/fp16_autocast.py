"""fp16-autocast: forward in float16, with a GradScaler that the loop uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class Fp16Autocast(Technique):
    """
    ## What it does
    Runs the model's forward under `torch.autocast(dtype=torch.float16)`, with float32 outputs, and makes the GradScaler
    that float16 needs: `hotloop.apply_strategy(...).scaler` by API; hotloop's Trainer uses it by itself. Your loop has
    to scale the loss, unscale before clipping, and step and update through the scaler.

    ## When it helps
    GPUs with float16 units but no bfloat16 ones (V100, T4). Where both exist they are equally fast, and bfloat16 needs
    no scaler.

    ## When it does not
    On a CPU no gain was measured: 703 against 740 ms a step for a 10 million parameter transformer on two cores with
    AMX, because float16 matrix products ran no faster than float32 ones (torch 2.13). Such a model is left alone. From
    outside a script, hotloop cannot put `scale`, `unscale_`, `step` and `update` into the loop: not applicable.

    ## Numerics
    Lossy: ten bits of mantissa, five of exponent. The scaler skips a step whose gradients overflow; a few at the start
    are how it finds its scale. `init_scale` and `growth_interval` are those of torch's GradScaler.
    """

    id = "fp16-autocast"
    summary = "run the forward in float16 (autocast and a GradScaler)"
    effort = "medium"
    numerics = Numerics.LOSSY
    stage = Stage.PRECISION
    is_probed = True
    treats = ("full-precision",)
    conflicts = ("bf16-autocast", "bf16-parameters", "drop-scaler")
    settings = (
        Setting(
            name="init_scale", kind=float, default=65536.0, least=1, most=2.0**32, help="initial scale of the scaler"
        ),
        Setting(
            name="growth_interval",
            kind=int,
            default=2000,
            least=1,
            most=1_000_000,
            help="steps without overflow after which the scale doubles",
        ),
    )

    def change_scaler(self, scaler: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        import weakref

        if scaler.is_enabled():
            context.memory(self.id).setdefault("own", []).append(weakref.ref(scaler))
        return None

    def change_model(self, model: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        import torch

        from hotloop.apply.precision import autocast_forward, device_of, why_not_autocast

        if context.from_outside:
            return NotApplicable(why="the script's loop has to scale the loss; try bf16-autocast, or use the API")
        why = why_not_autocast(model, None)
        if why is not None:
            return NotApplicable(why=why)
        device = device_of(model)
        if device == "cpu":
            return NotApplicable(why="float16 is not faster than float32 on a CPU; try bf16-autocast")
        memory = context.memory(self.id)
        own = [one for one in (reference() for reference in memory.get("own", ())) if one is not None]

        def give_up(why: str) -> None:
            undo()
            context.report(self.id, NotApplicable(why=f"reverted: the forward failed under autocast: {why}"))

        done = "the forward runs under autocast({device!r}, float16), with outputs in float32"
        values: dict[str, Value] = {"device": device}
        if own:
            detail = "the script's own GradScaler scales"
        else:
            made = memory["scaler"] = torch.amp.GradScaler(
                device,
                init_scale=float(settings["init_scale"]),
                growth_interval=int(settings["growth_interval"]),
            )
            values["init_scale"] = made._init_scale
            detail = "scale the loss with the new GradScaler (init_scale={init_scale:g})"
        undo = autocast_forward(model, torch.float16, give_up)
        return Applied(text=f"{done}; {detail}", values=values, undo=undo)
