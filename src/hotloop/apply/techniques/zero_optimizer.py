"""zero-optimizer: each rank keeps and updates its share of the optimizer's state (ZeRO stage 1)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Stage, Technique

NEEDS_ALL = ("LBFGS", "SparseAdam")


class ZeroOptimizer(Technique):
    """
    ## What it does
    Puts torch's `ZeroRedundancyOptimizer` in the optimizer's place: each rank updates its share of the parameters and
    sends them to the others; it holds optimizer state for its share only. To save, call `consolidate_state_dict(to=0)`
    on all ranks, then `state_dict()` on rank 0: the whole, ordinary state. Without that `state_dict()` refuses. A whole
    state of the same optimizer loads on any number of ranks. hotloop's Trainer does this by itself.

    ## When it helps
    Adam's state takes 8 bytes per float32 parameter; with N ranks each keeps about 8/N, in whole tensors: a large
    single one is not cut. The step itself costs about 1/N as well.

    ## When it does not
    It saves neither parameters, gradients nor activations, and adds an exchange of all parameters to every step. It
    does not fit optimizers that look at all gradients at once, parameters of several types, closures that differ
    between ranks, or gradients that differ between ranks. An unmodified script saves its optimizer on one rank, which
    holds only a share: it is not applied from outside.

    ## Numerics
    Reordered: the same formula for each tensor, in other groups of tensors.
    """

    id = "zero-optimizer"
    summary = "keep only a shard of the optimizer's state on each rank (`ZeroRedundancyOptimizer`)"
    effort = "medium"
    numerics = Numerics.REORDERED
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

        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.distributed.tensor import DTensor

        kind = type(optimizer)
        if not kind.__module__.startswith("torch.optim.") or kind.__name__ in NEEDS_ALL:
            return NotApplicable(why=f"{kind.__name__} may use all gradients at once")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(isinstance(p, DTensor) for p in parameters):
            return NotApplicable(why="the parameters are already sharded")
        if len({p.dtype for p in parameters}) > 1:
            return NotApplicable(why="the parameters are of several types")
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
        known = inspect.signature(kind.__init__).parameters
        group = models[0].process_group
        sharded = ZeroRedundancyOptimizer(
            optimizer.param_groups,
            kind,
            process_group=group,
            **{key: value for key, value in optimizer.defaults.items() if key in known},
        )
        if optimizer.state:
            sharded.load_state_dict(optimizer.state_dict())
        return Applied(
            text="state of {parameters} parameters sharded over {ranks} ranks",
            values={"parameters": len(parameters), "ranks": dist.get_world_size(group)},
            replacement=sharded,
        )
