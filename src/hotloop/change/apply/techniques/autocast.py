"""bf16-autocast and fp16-autocast: the forward in 16 bits; parameters stay float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value
from hotloop.core.sources import ModelContext
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Setting, Stage, Technique

MANY_LENGTHS_RATIO = 0.3
FEWEST_BATCHES, MOST_BATCHES = 5, 32


class Bf16Autocast(Technique):
    """
    ## What it does
    Runs the model's forward under `torch.autocast(dtype=torch.bfloat16)`: matrix products and convolutions compute in
    bfloat16, sums and normalizations in float32. Parameters, gradients, optimizer state and checkpoints stay float32.
    The model returns float32 outputs, so a loss outside the model is computed as before. A copy or pickle of the model
    does not include the change.

    Each outermost module that is called with gradients enabled is treated separately. If its forward fails under
    autocast, hotloop runs it again without autocast, starting from the same random numbers. If that succeeds, hotloop
    leaves the model alone from then on, and the report says so. hotloop also leaves a model alone if the backward of
    one of the script's own `autograd.Function` classes would receive tensors of both dtypes: without `custom_bwd`, such
    a backward runs outside autocast.

    ## When it helps
    Matrix units compute bfloat16 several times faster. A 10 million parameter transformer went from 273 to 169 CPU-ms
    per step on a core with AMX, both measured with a fused optimizer, and from 328 CPU-ms with the default optimizer
    (torch 2.13, n = 7, interleaved; docs/claims.md has later measurements).

    ## When it does not
    With small matrices, the casts cost more than bfloat16 saves (14 to 20 ms per step for a small model on a CPU). On
    hardware without bfloat16 units, there is no gain: hotloop does not apply the technique on such a GPU, and reports
    such a CPU. On a CPU, batches of many different lengths are slow because each length needs its own kernels. hotloop
    leaves some models alone: those under the script's own autocast, even if that autocast is switched off, those in
    another dtype, those with FSDP mixed precision, and those in nn.DataParallel on several GPUs.

    ## Numerics
    Lossy: matrix products use eight bits of mantissa. Compare the loss curve. `evaluation = false` keeps forwards
    without gradients in float32.
    """

    id = "bf16-autocast"
    summary = "run the forward and the loss under `torch.autocast(dtype=torch.bfloat16)`"
    numerics = Numerics.LOSSY
    stage = Stage.PRECISION
    is_probed = True
    source = ModelContext(context='torch.autocast("{device}", dtype=torch.bfloat16)', value="device")
    memory = MemorySaving(what="half the size of the activations that autocast casts")
    treats = ("full-precision",)
    conflicts = ("fp16-autocast", "bf16-parameters")
    settings = (
        Setting(name="dtype", kind=str, default="bfloat16", choices=("bfloat16",), help="dtype of autocast"),
        Setting(name="device_type", kind=str, default=None, help="apply only to models on this device (default: any)"),
        Setting(name="evaluation", kind=bool, default=True, help="also apply to forwards without gradients"),
    )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        from hotloop.change.apply.precision import device_of, why_not_autocast

        named = settings["device_type"]
        why = why_not_autocast(model, None if named is None else str(named))
        if why is not None:
            return NotApplicable(why=why)
        device = device_of(model)
        if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return NotApplicable(why="this GPU has no bfloat16 units")

        undo = _run_under(self.id, model, torch.bfloat16, context, evaluation=bool(settings["evaluation"]))
        slow = "; this CPU has no bfloat16 units, so expect no gain" if device == "cpu" and not _has_units() else ""
        text = "the forward runs under autocast({device!r}, bfloat16), with outputs in float32" + slow
        return Applied(text=text, values={"device": device}, undo=undo)

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        saving = super().forecast(analysis, settings)
        if saving is not None and analysis.lead.device_type == "cpu" and _has_many_lengths(analysis):
            return replace(saving, low_ratio=0.0)  # one step's shapes, replayed, promise nothing for the others
        return saving


def _has_units() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; True if torch does not know."""
    import torch

    ask = getattr(torch.cpu, "get_capabilities", None)
    found = ask() if ask is not None else {}
    if found.get("architecture") != "x86_64":
        return True
    return any(found.get(name, True) for name in ("avx512_bf16", "amx_bf16"))


def _has_many_lengths(analysis: Analysis) -> bool:
    columns = analysis.lead.columns
    pairs = zip(columns.get("tokens", ()), columns.get("padding_tokens", ()), strict=False)
    totals = [tokens + padding for tokens, padding in pairs if tokens >= 0 and padding >= 0]
    totals = totals[:: -(-len(totals) // MOST_BATCHES) or 1]
    return len(totals) >= FEWEST_BATCHES and len(set(totals)) > MANY_LENGTHS_RATIO * len(totals)


class Fp16Autocast(Technique):
    """
    ## What it does
    Runs the model's forward under `torch.autocast(dtype=torch.float16)`, with float32 outputs, and creates the
    GradScaler that float16 needs. Through the API, it is `hotloop.apply_strategy(...).scaler`, and your loop has to
    scale the loss, unscale before clipping, and step and update through the scaler. hotloop's Trainer does all of this
    by itself.

    ## When it helps
    It helps on GPUs that have float16 units but no bfloat16 units (V100, T4). On GPUs with both, the two dtypes are
    equally fast, and bfloat16 needs no scaler.

    ## When it does not
    No speedup was measured on a CPU: a 10 million parameter transformer on two cores with AMX took 703 ms per step
    compared with 740 ms, because float16 matrix products ran no faster than float32 products (torch 2.13). hotloop
    leaves models on a CPU alone. The technique does not apply to an unmodified script, because hotloop cannot add
    `scale`, `unscale_`, `step` and `update` to its loop.

    ## Numerics
    Lossy: float16 has ten bits of mantissa and five of exponent. The scaler skips a step whose gradients overflow; a
    few skipped steps at the start are normal, because that is how the scaler finds its scale. `init_scale` and
    `growth_interval` are those of torch's GradScaler.
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

        from hotloop.change.apply.precision import device_of, why_not_autocast

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
        undo = _run_under(self.id, model, torch.float16, context)
        return Applied(text=f"{done}; {detail}", values=values, undo=undo)


def _run_under(
    technique: str, model: Any, dtype: Any, context: Context, *, evaluation: bool = True
) -> Callable[[], None]:
    """The model's forward under autocast, given up for good where it fails; returns what takes it back."""
    from hotloop.change.apply.precision import autocast_forward

    def give_up(why: str) -> None:
        undo()
        context.report(technique, NotApplicable(why=f"reverted: the forward failed under autocast: {why}"))

    undo = autocast_forward(model, dtype, give_up, evaluation=evaluation)
    return undo
