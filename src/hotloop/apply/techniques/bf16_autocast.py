"""bf16-autocast: forward and loss in bfloat16 where that keeps its accuracy; parameters stay float32."""

from __future__ import annotations

from collections.abc import Mapping
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
    bfloat16, sums and normalisations in float32. Parameters, gradients, optimizer state and checkpoints stay float32.
    The model returns float32 outputs, so a loss outside the model computes as before. A copy or pickle of the model
    does not carry the change.

    Every outermost module that is called with gradients is treated separately. A forward that fails under autocast and
    succeeds without it is rerun without it, from the same random numbers, and the model is left alone from then on; the
    report shows this. Also left alone is a model with an `autograd.Function` of the script's own whose backward would
    get tensors of both dtypes: without `custom_bwd` it runs outside autocast.

    ## When it helps
    Matrix units compute bfloat16 several times faster. A 10 million parameter transformer went from 273 to 169 CPU-ms a
    step on a core with AMX, both with a fused optimizer, and from 328 with the default one (torch 2.13, n = 7,
    interleaved; docs/claims.md has later measurements).

    ## When it does not
    Small matrices: the casts cost more than they save (14 to 20 ms a step on a small model on a CPU). Hardware without
    bfloat16 units: hotloop refuses such a GPU, and reports such a CPU. On a CPU, batches of many lengths: each needs
    its own kernels. Left as they are: models under the script's own autocast, even one that it switched off, models in
    another dtype, with FSDP mixed precision, or in nn.DataParallel on several GPUs.

    ## Numerics
    Lossy: eight bits of mantissa in matrix products. Compare the loss curve. `evaluation = false` keeps forwards
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

        from hotloop.apply.precision import autocast_forward, device_of, why_not_autocast

        named = settings["device_type"]
        why = why_not_autocast(model, None if named is None else str(named))
        if why is not None:
            return NotApplicable(why=why)
        device = device_of(model)
        if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return NotApplicable(why="this GPU has no bfloat16 units")

        def give_up(why: str) -> None:
            undo()
            context.report(self.id, NotApplicable(why=f"reverted: the forward failed under autocast: {why}"))

        undo = autocast_forward(model, torch.bfloat16, give_up, evaluation=bool(settings["evaluation"]))
        slow = "; this CPU has no bfloat16 units, so expect no gain" if device == "cpu" and not _has_units() else ""
        text = "the forward runs under autocast({device!r}, bfloat16), with outputs in float32" + slow
        return Applied(text=text, values={"device": device}, undo=undo)

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        saving = super().forecast(analysis, settings)
        if saving is not None and analysis.lead.device_type == "cpu" and _has_many_lengths(analysis):
            return replace(saving, low_ratio=0.0)  # one step's shapes, replayed, promise nothing for the others
        return saving


def _has_units() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; True where torch cannot tell."""
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
