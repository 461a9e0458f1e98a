"""bf16-parameters: weights, their gradients and optimizer state in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.apply.forecasts import measured_forecast
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Safety, Saving, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class Bf16Parameters(Technique):
    """
    ## What it does
    Stores the weight matrices (parameters of two or more dimensions) in bfloat16 and runs the forward under bfloat16
    autocast, with outputs in float32. Their gradients and their optimizer state are bfloat16 too: half the bytes of
    weights, gradients and state. Biases, normalisations, recurrent layers and parametrised weights stay float32, and so
    do buffers.

    ## When it helps
    Memory is short, or weights are read more often than they are used: small batches, large embeddings, wide layers.
    A 10 million parameter transformer wholly in bfloat16 took 133 CPU-ms a step where autocast took 169, on a core with
    AMX (torch 2.13, n = 7, interleaved); less is won here, where part of the model stays float32.

    ## When it does not
    Trainings that must match float32: an update smaller than a 256th of its weight is lost. Models that are wrapped in
    DistributedDataParallel or FSDP already (give the model before it is wrapped), optimizers that hold state already,
    LBFGS, models in another dtype, the script's own autocast. Checkpoints hold bfloat16 weights from then on.

    ## Numerics
    Lossy, more than autocast: after 9 steps the transformer's loss was 5.5792 in place of 5.5548 (autocast: 5.5500).
    Over 300 steps of a small language model the mean of 3 seeds left the range of 5 float32 seeds (1.806 in steps 50 to
    100, range 1.768 to 1.793; docs/numerics.md). Compare the loss curve over the whole training, the end most of all.
    """

    id = "bf16-parameters"
    title = "weights, gradients and optimizer state in bfloat16"
    numerics = Numerics.LOSSY
    safety = Safety.SHOW
    stage = Stage.PRECISION
    treats = ("full-precision", "memory-pressure")
    conflicts = ("bf16-autocast", "fp16-autocast")
    settings = (
        Setting(
            name="least_elements",
            kind=int,
            default=0,
            least=0,
            most=1 << 40,
            help="leave parameters with fewer elements in float32",
        ),
    )

    def change_model(self, model: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        import torch

        from hotloop.apply.precision import autocast_forward, device_of, why_not_autocast

        why = why_not_autocast(model, None) or _why_not(model, context)
        if why is not None:
            return NotApplicable(why=why)
        device = device_of(model)
        if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return NotApplicable(why="this GPU has no bfloat16 units")
        chosen = [p for p in _weights(model) if p.numel() >= int(settings["least_elements"])]
        if not chosen:
            return NotApplicable(why="no weight matrix that could be stored in bfloat16")
        # Until the first forward has shown that the model bears it; a compiled one cannot be watched.
        is_compiled = context.strategy.get("compile-model") or getattr(model, "_compiled_call_impl", None)
        kept = [] if is_compiled else [p.detach().clone() for p in chosen]
        _store(chosen, torch.bfloat16)

        def back(reason: str) -> None:
            undo_forward()
            with torch.no_grad():
                for p, value in zip(chosen, kept, strict=False):
                    p.data = value
            _store(chosen, torch.float32)  # what has no copy any more is widened
            kept.clear()
            if reason:
                context.report(self.id, NotApplicable(why=f"taken back, the forward failed: {reason}"))

        undo_forward = autocast_forward(model, torch.bfloat16, back, settle=kept.clear)
        bytes_count = 2 * sum(p.numel() for p in chosen)
        return Applied(
            detail=f"{len(chosen)} weight matrices in bfloat16 ({bytes_count / 2**20:.1f} MiB less), forward under "
            f"autocast({device!r}, bfloat16), outputs in float32",
            undo=lambda: back(""),
        )

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        return measured_forecast(analysis, self.id)


def _why_not(model: Any, context: Context) -> str | None:
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        return "DistributedDataParallel has made its float32 buckets already; give the model before it is wrapped"
    if any("FSDP" in type(one).__name__ or "FullySharded" in type(one).__name__ for one in model.modules()):
        return "the model is sharded: choose FSDP's own mixed precision"
    ours = {id(p) for p in model.parameters()}
    for optimizer in context.optimizers():
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if not any(id(p) in ours for p in held):
            continue
        if type(optimizer).__name__ == "LBFGS":
            return "LBFGS needs one dtype for all parameters"
        if any(optimizer.state.get(p) for p in held):
            return f"{type(optimizer).__name__} has float32 state already"
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


def _store(parameters: list[Any], dtype: Any) -> None:
    """The same Parameter objects with their values, and gradients where there are, in another dtype."""
    for p in parameters:
        gradient, p.grad = p.grad, None
        p.data = p.data.to(dtype)
        if gradient is not None:
            p.grad = gradient.to(dtype)


TECHNIQUE = Bf16Parameters()
