"""zero-optimizer: each rank keeps and updates its share of the optimizer's state (ZeRO stage 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Stage, Technique


class ZeroOptimizer(Technique):
    """
    ## What it does
    Splits the parameters into as many equal shares of bytes as there are ranks, through tensors if need be. Each rank
    updates its share and sends it to the others; it holds optimizer state for its share only. To save, call the
    optimizer's `gather_state()` on all ranks, then `state_dict()`: the whole, ordinary state. Without that
    `state_dict()` refuses. A whole state of the same optimizer loads on any number of ranks.

    ## When it helps
    Adam's state takes 8 bytes per float32 parameter; with N ranks each keeps 8/N. With 25 million parameters on two
    ranks, 202.5 MB became 101.7 MB a rank. The step itself costs 1/N as well.

    ## When it does not
    It saves neither parameters, gradients nor activations, and adds an exchange of all parameters to every step. It
    does not fit optimizers that look at whole tensors or norms, closures that differ between ranks, or gradients that
    differ between ranks. An unmodified script saves its optimizer on one rank, which holds only a share: it is not
    applied from outside.

    ## Numerics
    Reordered: elements near a cut may be updated by another path of a vector kernel. The formula is the same.
    """

    id = "zero-optimizer"
    summary = "keep only a shard of the optimizer's state on each rank (`ZeroRedundancyOptimizer`)"
    effort = "medium"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.OPTIMIZER
    memory = MemorySaving(what="optimizer state of the other ranks", needs="ranks")
    needs_library = True
    treats = ("memory-pressure",)
    conflicts = ("fsdp2", "optimizer-state-offload")

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch.distributed as dist

        if context.from_outside:
            return NotApplicable(
                why="scripts save optimizer.state_dict() on one rank, which would contain only a shard; apply it "
                "with the API"
            )
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return NotApplicable(why="there is only one rank")

        from torch.distributed.tensor import DTensor

        from hotloop.apply.sharded_optimizer import ELEMENTWISE, ShardedOptimizer

        kind = type(optimizer)
        if not kind.__module__.startswith("torch.optim.") or kind.__name__ not in ELEMENTWISE:
            return NotApplicable(
                why=f"{kind.__name__} may use whole tensors; supported: {', '.join(sorted(ELEMENTWISE))}"
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(isinstance(p, DTensor) for p in parameters):
            return NotApplicable(why="the parameters are already sharded")
        if any(p.is_complex() for p in parameters):
            return NotApplicable(why="a parameter is complex")
        models = [model for model in context.models() if hasattr(model, "reducer")]
        reduced = {id(p) for model in models for p in model.parameters()}
        if models and not all(id(p) in reduced for p in parameters):
            return NotApplicable(
                why="a parameter is outside the DistributedDataParallel, so its gradients may differ between ranks"
            )
        if not models:
            return NotApplicable(
                why="the model is not a DistributedDataParallel, so gradients may differ between ranks"
            )
        sharded = ShardedOptimizer(optimizer, models[0].process_group)
        return Applied(
            text="state of {parameters} parameters sharded over {ranks} ranks by bytes",
            values={"parameters": len(parameters), "ranks": sharded._ranks},
            replacement=sharded,
        )
