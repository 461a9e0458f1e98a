"""local-updates: ranks train on their own for some steps, then exchange what they changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.apply.method_settings import Needs, why_unread
from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

NEEDS: Needs = {
    "outer_rate": ("outer", ("nesterov",)),
    "outer_momentum": ("outer", ("nesterov",)),
}


class LocalUpdates(Technique):
    """
    ## What it does
    DistributedDataParallel stops averaging gradients. After every `steps` steps of the optimizer, the ranks exchange
    how far their weights have moved: with `outer = "average"` all take the mean (Local SGD), with `"nesterov"` the mean
    move is the gradient of an outer SGD with Nesterov momentum (DiLoCo, arXiv 2311.08105), sent as `float32` or `bf16`.
    In the first `warm_up_steps` steps the ranks still average their gradients (post-local SGD, arXiv 1808.07217).
    Weights, and the buffers that DDP would send (their mean; a counter is the first rank's), are equal on all ranks,
    bit for bit, after each exchange.

    ## When it helps
    A slow link between the ranks or hosts: with `steps = 10` it carries a tenth of the bytes, and nothing in nine of
    ten steps. Sent bytes of plain DDP's, counted at the interfaces of two gloo ranks with 8 layers of 512 x 512:
    `float32` 0.1000, `bf16` 0.0500. The first step is DDP's own, and so is a warm-up.

    ## When it does not
    FSDP and other sharding, optimizers that share their state over ranks, GradScaler (it would skip a step on one rank
    alone), weights other than float32, several optimizers, or a DDP with its own communication hook. Every rank must
    make the same number of steps. `nesterov` keeps two more copies of the weights, a mean in `bf16` one.

    Between exchanges, each rank has weights of its own. A script that saves `model.state_dict()` then, saves those of
    the rank that saves; validation sees each rank's own. Save and validate at a multiple of `steps`: the weights are
    equal then. The optimizer's state always differs between ranks, and a script's checkpoint has neither all of
    it nor the outer momentum. hotloop's Trainer validates, saves and ends with the mean weights, and its checkpoints
    continue bit for bit on as many ranks.

    ## Numerics
    Lossy: another algorithm, with the hyperparameters of the old one. Expect a higher loss: each rank's gradients are
    of its own, smaller batch, for which Adam makes smaller steps. After 2,000 steps of AdamW, a small language model
    ended 8 % (`average`) and 10 % (`nesterov`) above plain's loss with `steps = 10` at once; with `warm_up_steps = 500`
    +2.9 % and +0.2 % from it, where 0.325 (float32) and 0.288 (bf16) of plain's bytes are sent in all
    ([table](communication-quality.md)). `nesterov` multiplies the mean move by `outer_rate / (1 - outer_momentum)` in
    the long run: 1.4 by default, about the square root of two workers; the paper's momentum of 0.9 makes it 7, which is
    meant for hundreds of steps between exchanges. Gradients are clipped by each rank's own norm; learning rates and
    schedules act on the inner steps. A weight that becomes NaN on one rank becomes so on all.
    """

    id = "local-updates"
    summary = "exchange weights every few steps instead of gradients"
    effort = "medium"
    numerics = Numerics.LOSSY
    safety = Safety.ASK
    stage = Stage.PARALLEL
    suits_library = True
    treats = ("slow-link",)
    conflicts = (
        "compress-gradients",
        "ddp-settings",
        "fp16-autocast",
        "fsdp2",
        "no-sync-accumulation",
        "zero-optimizer",
    )
    settings = (
        Setting(name="steps", kind=int, default=10, least=2, most=10_000, help="optimizer steps between two exchanges"),
        Setting(
            name="warm_up_steps",
            kind=int,
            default=0,
            least=0,
            most=1_000_000_000,
            help="the training's first steps, in which every gradient is averaged",
        ),
        Setting(
            name="outer",
            kind=str,
            default="average",
            choices=("average", "nesterov"),
            help="what becomes of the weight changes: their mean (Local SGD), or an outer optimizer's step (DiLoCo)",
        ),
        Setting(
            name="outer_rate",
            kind=float,
            default=0.7,
            least=1e-3,
            most=2.0,
            help="learning rate of nesterov's outer step",
        ),
        Setting(
            name="outer_momentum",
            kind=float,
            default=0.5,
            least=0.0,
            most=0.999,
            help="its momentum; the paper's is 0.9",
        ),
        Setting(
            name="send",
            kind=str,
            default="float32",
            choices=("float32", "bf16"),
            help="how weight changes are sent",
        ),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        choice = strategy.get(self.id)
        return why_unread(NEEDS, settings, choice.settings if choice is not None else ())

    def why_norms_differ(self, settings: Mapping[str, Value]) -> str:
        return "between two exchanges, each rank's gradients are its own"

    def change_scaler(self, scaler: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if not scaler.is_enabled():
            return None
        context.memory(self.id)["has_scaler"] = True
        return NotApplicable(why="a GradScaler skips a step on one rank alone; train in bf16, which needs none")

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch.distributed as dist

        from hotloop.apply.ddp import find_ddp, why_special
        from hotloop.apply.modules import is_sharded
        from hotloop.apply.rounds import LocalRounds, RoundPlan

        memory = context.memory(self.id)
        if memory.get("has_scaler"):
            return None  # said where it was built
        if any(is_sharded(part) for part in model.modules()):
            return NotApplicable(why="the model is sharded (FSDP): no rank has all the weights to train on alone")
        found = find_ddp(model)
        if not found:
            return NotApplicable(why="the model is not a DistributedDataParallel")
        if len(found) > 1 or found[0] is not model:
            return NotApplicable(why="DistributedDataParallel is inside another module, or compiled")
        if "rounds" in memory:
            return NotApplicable(why="the script trains a second DistributedDataParallel")
        ranks = dist.get_world_size(model.process_group)
        values: dict[str, Any] = dict(settings)
        plan = RoundPlan(**values)
        if ranks == 1:
            return NotApplicable(why="one rank: nothing is sent")
        why = why_special(model)
        if why is not None:
            return NotApplicable(why=why)

        def emit(why: str | None) -> None:
            context.report(self.id, NotApplicable(why=why) if why is not None else _applied(plan, ranks))

        memory["rounds"] = LocalRounds(model, plan, emit)
        memory["acts_later"] = True
        fewer = f"fewer than {plan.first_steps} steps" if plan.first_steps > 1 else "no step"
        memory["why_not"] = f"the training made {fewer}"
        return None

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        rounds = context.memory(self.id).get("rounds")
        if rounds is not None:
            rounds.watch_optimizer(optimizer)
        return None


def _applied(plan: Any, ranks: int) -> Applied:
    """The settings that count, as the report shows them."""
    text = "the {workers} workers exchange their weight changes every {steps} steps, outer={outer}, send={send}"
    values: dict[str, Value] = {"workers": ranks, "steps": plan.steps, "outer": plan.outer, "send": plan.send}
    extra = (("warm_up_steps",) if plan.warm_up_steps else ()) + (
        ("outer_rate", "outer_momentum") if plan.outer == "nesterov" else ()
    )
    values |= {name: getattr(plan, name) for name in extra}
    return Applied(text=text + "".join(f", {name}={{{name}:g}}" for name in extra), values=values)
