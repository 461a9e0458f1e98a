"""fsdp2 and zero-optimizer: state that is divided among the ranks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Setting, Stage, Technique

DTYPES = ("as-is", "bfloat16", "float16", "float32")


class Fsdp2(Technique):
    """
    ## What it does
    Calls torch's `fully_shard` on every block of the model (the members of its `ModuleList`s), then on the model. Pass
    the model first, then build the optimizer over the sharded parameters. The Trainer does this for you.

    ## When it helps
    It helps models whose parameters, gradients and optimizer state do not fit on one device. With 25 million parameters
    and Adam on two gloo ranks, each rank held 101.2 MB of state instead of 202.5 MB, and 50.6 MB of parameters instead
    of 101.2 MB.

    ## When it does not
    It makes models that fit on one device slower: all-gathering the parameters twice per step costs more than one
    all-reduce of the gradients. Process memory may not fall immediately (in the same test, the resident set did not
    become smaller). An unmodified script builds its optimizer over unsharded parameters, and often wraps the model
    itself, so hotloop does not apply this from outside.

    ## Numerics
    Reordered: gradients are reduced in different pieces. Lossy with `param_dtype` or `reduce_dtype` below float32.
    """

    id = "fsdp2"
    summary = "keep only a shard of the parameters, gradients and optimizer state on each rank (`fully_shard`)"
    effort = "hard"
    numerics = Numerics.REORDERED
    stage = Stage.PARALLEL
    memory = MemorySaving(what="parameters, gradients and optimizer state of the other ranks")
    needs_library = True
    treats = ("memory-pressure",)
    conflicts = ("zero-optimizer", "ddp-buckets", "ddp-settings", "no-sync-accumulation")
    settings = (
        Setting(
            name="reshard_after_forward",
            kind=bool,
            default=True,
            help="free the gathered parameters between forward and backward: less memory, one more all-gather",
        ),
        Setting(name="param_dtype", kind=str, default="as-is", choices=DTYPES, help="dtype of gathered parameters"),
        Setting(
            name="reduce_dtype", kind=str, default="as-is", choices=DTYPES, help="dtype in which gradients are reduced"
        ),
        Setting(
            name="cpu_offload", kind=bool, default=False, help="keep parameters and optimizer state in host memory"
        ),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if settings["reduce_dtype"] != "as-is" and settings["param_dtype"] == "as-is":
            return "reduce_dtype is set, but param_dtype is not; set param_dtype too"
        return None

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if context.from_outside:
            return NotApplicable(
                why="the script's optimizer already refers to the unsharded parameters; apply it with the API before "
                "the optimizer is built, or use the Trainer"
            )
        import torch
        import torch.distributed as dist
        from torch import nn

        try:
            from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
        except ImportError:
            return NotApplicable(why=f"torch {torch.__version__} has no fully_shard")

        if not dist.is_available() or not dist.is_initialized():
            return NotApplicable(why="torch.distributed is not initialized")
        if dist.get_world_size() == 1:
            return NotApplicable(why="there is only one rank")
        if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
            return NotApplicable(why="the model is wrapped in DistributedDataParallel; pass the inner module")
        if any(isinstance(module, FSDPModule) for module in model.modules()):
            return NotApplicable(why="the model is already sharded")
        held = {id(p) for one in context.optimizers() for group in one.param_groups for p in group["params"]}
        if any(id(p) in held for p in model.parameters()):
            return NotApplicable(
                why="an optimizer refers to the unsharded parameters; build it after the model is sharded"
            )
        offload = bool(settings["cpu_offload"])
        if offload and next(model.parameters()).device.type == "cpu":
            return NotApplicable(why="cpu_offload: the model is already on the CPU")
        options: dict[str, Any] = {"reshard_after_forward": settings["reshard_after_forward"]}
        if settings["param_dtype"] != "as-is":
            dtypes: dict[str, Any] = {
                key: None if settings[key] == "as-is" else getattr(torch, str(settings[key]))
                for key in ("param_dtype", "reduce_dtype")
            }
            options["mp_policy"] = MixedPrecisionPolicy(**dtypes)
        if offload:
            options["offload_policy"] = CPUOffloadPolicy()
        blocks = find_blocks(model)
        for block in blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        low = any(settings[key] in ("bfloat16", "float16") for key in ("param_dtype", "reduce_dtype"))
        return Applied(
            text="{blocks} blocks and the model sharded over {ranks} ranks",
            values={"blocks": len(blocks), "ranks": dist.get_world_size()},
            numerics=Numerics.LOSSY if low else None,
        )


def find_blocks(model: Any) -> list[Any]:
    """The members of the model's outermost ModuleLists, and of Sequentials whose members are no plain layers."""
    from torch import nn

    found: list[Any] = []

    def look(module: Any) -> None:
        if isinstance(module, nn.ModuleList) or (
            isinstance(module, nn.Sequential) and any(next(one.children(), None) is not None for one in module)
        ):
            found.extend(one for one in module if next(one.parameters(), None) is not None)
            return
        for child in module.children():
            look(child)

    look(model)
    return found


NEEDS_ALL = ("LBFGS", "SparseAdam")


class ZeroOptimizer(Technique):
    """
    ## What it does
    Replaces the optimizer with torch's `ZeroRedundancyOptimizer`: each rank updates its share of the parameters and
    sends them to the others; it holds the optimizer state only for its share. To save, call
    `consolidate_state_dict(to=0)` on all ranks, then `state_dict()` on rank 0, which returns the full, ordinary state.
    Without that call, `state_dict()` raises an error. The full state of the same optimizer can be loaded on any number
    of ranks. hotloop's Trainer does all of this by itself.

    ## When it helps
    Adam's state takes 8 bytes per float32 parameter; with N ranks, each rank keeps about 8/N bytes. Tensors are not
    split, so a single large tensor stays on one rank. The time of the optimizer's step also falls to about 1/N.

    ## When it does not
    It saves no memory for parameters, gradients or activations, and adds an exchange of all parameters to every step.
    It does not work with optimizers that look at all gradients at once, parameters of several types, closures that
    differ between ranks, or gradients that differ between ranks. An unmodified script saves its optimizer on one rank,
    which holds only a share, so hotloop does not apply this from outside.

    ## Numerics
    Reordered: the formula for each tensor stays the same, but tensors are grouped differently.
    """

    id = "zero-optimizer"
    summary = "keep only a shard of the optimizer's state on each rank (`ZeroRedundancyOptimizer`)"
    effort = "medium"
    numerics = Numerics.REORDERED
    stage = Stage.OPTIMIZER
    memory = MemorySaving(what="optimizer state of the other ranks")
    needs_library = True
    treats = ("memory-pressure",)
    conflicts = ("fsdp2",)

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
