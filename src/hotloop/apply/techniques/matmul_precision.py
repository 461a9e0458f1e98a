"""matmul-precision: float32 matrix products on faster units with fewer bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.sources import TorchCall
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

FULL = "highest"


class MatmulPrecision(Technique):
    """
    ## What it does
    Calls `torch.set_float32_matmul_precision(precision)` before the script's own code runs, for the whole process. On
    NVIDIA GPUs from Ampere on, 'high' and 'medium' let float32 matrix products use TF32 units. On a CPU, 'medium' lets
    oneDNN compute them in bfloat16. Without a `precision`, hotloop sets 'high', and 'medium' once it sees the model on
    a CPU. A script that sets the precision itself keeps it.

    ## When it helps
    float32 models dominated by matrix products. A 10 million parameter transformer went from 273 to 197 CPU-ms a step
    on a core with AMX, with nothing else changed (torch 2.13, n = 7, interleaved).

    ## When it does not
    Under autocast the products are bfloat16 or float16 anyway. GPUs before Ampere and CPUs without bfloat16 units
    compute as before. Convolutions on CUDA already use TF32 (`torch.backends.cudnn.allow_tf32`). Matrix products
    outside the model, such as a decomposition of the data before training, lose bits too.

    ## Numerics
    Lossy: inputs of products are rounded to 10 bits of mantissa (TF32) or 7 (bfloat16); sums stay float32.
    """

    id = "matmul-precision"
    summary = "compute float32 matrix products with fewer bits (TF32 or bfloat16)"
    numerics = Numerics.LOSSY
    stage = Stage.RUNTIME
    is_probed = True
    source = TorchCall(function="set_float32_matmul_precision", value="precision")
    treats = ("full-precision",)
    settings = (
        Setting(
            name="precision",
            kind=str,
            default=None,
            choices=("high", "medium"),
            help="torch.set_float32_matmul_precision (default: 'medium' on a CPU, else 'high')",
        ),
    )

    def start(self, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        before = torch.get_float32_matmul_precision()
        if before != FULL:
            return NotApplicable(why=f"float32 matrix products already have precision {before!r}")
        wanted = str(settings["precision"] or "high")
        torch.set_float32_matmul_precision(wanted)
        context.memory(self.id)["set"] = wanted

        def undo() -> None:
            if torch.get_float32_matmul_precision() == context.memory(self.id)["set"]:
                torch.set_float32_matmul_precision(before)

        values: dict[str, Value] = {"precision": wanted, "before": before}
        text = "set_float32_matmul_precision({precision!r}) instead of {before!r}"
        return Applied(text=text, values=values, undo=undo)

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        memory = context.memory(self.id)
        if "set" not in memory or memory.get("looked"):
            return None
        memory["looked"] = True
        now = torch.get_float32_matmul_precision()
        if now != memory["set"]:
            return NotApplicable(why=f"the script sets set_float32_matmul_precision({now!r})")
        device = next(model.parameters()).device
        if device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
            torch.set_float32_matmul_precision(FULL)
            return NotApplicable(why=f"{torch.cuda.get_device_name(device)} has no TF32 units; reverted")
        if device.type == "cpu" and settings["precision"] is None:
            memory["set"] = "medium"
            torch.set_float32_matmul_precision("medium")
            text = "set_float32_matmul_precision({precision!r}): the model is on the CPU"
            return Applied(text=text, values={"precision": "medium"})
        return None
