"""cudnn-benchmark: cuDNN times its convolution algorithms once for each shape and keeps the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class CudnnBenchmark(Technique):
    """
    ## What it does
    Sets `torch.backends.cudnn.benchmark = True` at the first forward of a model with convolutions on a CUDA device. For
    each new shape cuDNN then times several algorithms, and keeps the fastest for the rest of the process.

    ## When it helps
    Convolutional networks with inputs of one size, or a few. Not measured here yet.

    ## When it does not
    Models on a CPU or without convolutions. Images whose size keeps changing: timing each takes longer than it saves.
    If the script asks for determinism (`torch.use_deterministic_algorithms`, `cudnn.deterministic`), it stays off.

    ## Numerics
    Reordered, and not the same from run to run: the fastest algorithm may change with the GPU's load.
    """

    id = "cudnn-benchmark"
    summary = "let cuDNN choose the fastest convolution for each shape"
    effort = "easy"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.RUNTIME
    settings = (
        Setting(
            name="limit",
            kind=int,
            default=None,
            least=0,
            most=1000,
            help="number of algorithms to try for each shape, 0 for all (default: torch's)",
        ),
    )

    def change_model(self, model: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        import torch
        from torch.nn.modules.conv import _ConvNd

        if not any(isinstance(one, _ConvNd) for one in model.modules()):
            return NotApplicable(why="the model has no convolution")
        device = next(model.parameters()).device.type
        if device != "cuda":
            return NotApplicable(why=f"the model is on {device}, but cuDNN runs only on CUDA devices")
        cudnn = torch.backends.cudnn
        if not cudnn.enabled:
            return NotApplicable(why="the script sets cudnn.enabled=False")
        if cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            return NotApplicable(why="the script enables deterministic algorithms")
        if cudnn.benchmark:
            return NotApplicable(why="cudnn.benchmark is already enabled")
        limit = cudnn.benchmark_limit
        cudnn.benchmark = True
        if settings["limit"] is not None:
            cudnn.benchmark_limit = int(settings["limit"])

        def undo() -> None:
            cudnn.benchmark = False
            if settings["limit"] is not None:
                cudnn.benchmark_limit = limit

        return Applied(text="cudnn.benchmark=True", undo=undo)
