"""compress-gradients: DDP's gradients with fewer bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class CompressGradients(Technique):
    """
    ## What it does
    Registers a communication hook with DistributedDataParallel. `method` is `bf16` or `fp16` (half of float32's bytes),
    `topk` (the largest elements of each parameter's gradient with their indices: `ratio` 0.01 is 2 % of the bytes
    between two ranks) or `powersgd` (each matrix as two thin ones of rank `rank`). What `topk` and `powersgd` do not
    send, each rank keeps and adds to its next gradient. All ranks get the same gradient, bit for bit.

    ## When it helps
    A slow link between the ranks: less time on the wire than compressing takes. Sent bytes of plain DDP's, counted at
    the interfaces of two gloo ranks with 8 layers of 512 x 512: `bf16` 0.500, `topk` 0.0203, `powersgd` 0.0189.

    ## When it does not
    On a fast link, compressing costs more than it saves. It does nothing on one rank, under FSDP, with gradients other
    than float32, or if the model has its own communication hook. `topk` and `powersgd` need memory for another copy
    of the gradients. The script's checkpoints do not hold what the ranks keep: after a restart it begins at zero.

    ## Numerics
    Lossy: gradients are rounded, or arrive later. Compare the loss. A gradient that is infinite or NaN on one rank
    arrives so on all, so a GradScaler skips the step on every rank.
    """

    id = "compress-gradients"
    title = "send gradients with fewer bits"
    summary = "send gradients with fewer bits"
    effort = "easy"
    numerics = Numerics.LOSSY
    safety = Safety.ASK
    stage = Stage.PARALLEL
    treats = ("slow-link",)
    settings = (
        Setting(
            name="method",
            kind=str,
            default="bf16",
            choices=("bf16", "fp16", "topk", "powersgd"),
            help="how gradients are sent",
        ),
        Setting(
            name="ratio", kind=float, default=0.01, least=1e-5, most=0.5, help="part of the elements that topk sends"
        ),
        Setting(
            name="momentum",
            kind=float,
            default=0.0,
            least=0.0,
            most=0.999,
            help="of topk's kept gradients; the optimizer's own must be 0 then",
        ),
        Setting(name="rank", kind=int, default=4, least=1, most=256, help="rank of powersgd's factors"),
    )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch
        import torch.distributed as dist

        from hotloop.apply.compression import make_hook, register
        from hotloop.apply.ddp import find_ddp, why_special

        found = find_ddp(model)
        if not found:
            return NotApplicable(why="the model is not a DistributedDataParallel")
        for ddp in found:
            if dist.get_world_size(ddp.process_group) == 1:
                return NotApplicable(why="one rank: nothing is sent")
            why = why_special(ddp)
            if why is not None:
                return NotApplicable(why=why)
        method, ratio, momentum, rank = (settings[name] for name in ("method", "ratio", "momentum", "rank"))
        assert isinstance(method, str)
        assert isinstance(ratio, float)
        assert isinstance(momentum, float)
        assert isinstance(rank, int)
        dtypes = {one.dtype for one in model.parameters() if one.requires_grad}
        if dtypes != {torch.float32}:
            return NotApplicable(why=f"gradients are {', '.join(sorted(map(str, dtypes)))}, not torch.float32 alone")
        own: Mapping[str, Mapping[str, Value]] = {
            "topk": {"ratio": ratio, "momentum": momentum},
            "powersgd": {"rank": rank},
        }
        values = {"method": method, **own.get(method, {})}
        for ddp in found:
            register(ddp, make_hook(method, ratio=ratio, momentum=momentum, rank=rank))
        text = "DDP sends gradients by {method}" + "".join(f", {name} {{{name}:g}}" for name in list(values)[1:])
        return Applied(text=text, values=values)
