"""compress-gradients: DDP's gradients with fewer bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.change.apply.method_settings import READ_BY, why_unread
from hotloop.core.findings import Numerics, Value
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class CompressGradients(Technique):
    """
    ## What it does
    Registers a communication hook with DistributedDataParallel. `method` is `bf16` or `fp16` (half of float32's bytes),
    `int8` (a quarter: integers with one scale per 1,024 elements), `topk` (the largest elements of each parameter's
    gradient with their indices: `ratio` 0.01 is 2 % of the bytes between two ranks) or `powersgd` (each matrix as two
    thin matrices of rank `rank`). With `int8`, `topk` and `powersgd`, each rank keeps the part of the gradient that is
    not sent, and adds it to its next gradient. All ranks get the same gradient, bit for bit.

    `topk` and `powersgd` can begin later in the run: the first `warm_up_steps` exchanges then use `bf16`. With `topk`,
    the optimizer steps without momentum, because momentum does not work well with delayed gradients: inside a step,
    Adam's beta1 is at most `most_momentum`, and SGD's momentum acts before the selection (Deep Gradient Compression,
    arXiv 1712.01887). Other optimizers keep their momentum. The optimizer looks the same to the script and in its
    checkpoints.

    ## When it helps
    It helps if the link between the ranks is so slow that sending fewer bytes saves more time than compressing costs.
    These are the bytes sent relative to plain DDP, counted at the interfaces of two gloo ranks with 8 layers of 512 x
    512: `bf16` 0.500, `int8` 0.253, `topk` 0.0203, `powersgd` 0.0188. At 100 Mbit/s, a step with 25 million parameters
    took 8.9 s with plain DDP, 4.5 s with `bf16`, 2.4 s with `int8`, 0.56 s with `powersgd` and 0.40 s with `topk`; at 1
    Gbit/s, it took 1.04, 0.61, 0.57, 0.55 and 0.40 s (minimum of n = 10, 2026-11-23, two cores that other programs used
    as well: docs/link-choice.md).

    ## When it does not
    On a fast link, compressing costs more than it saves; on very busy cores, no method was clearly faster at 1 Gbit/s,
    and `int8` and `powersgd` were slower. The technique does nothing on one rank, under FSDP (see `reduce_dtype` of
    fsdp2), with gradients other than float32, or if the model has its own communication hook. `int8`, `topk` and
    `powersgd` need memory for another copy of the gradients. A script's own checkpoints do not contain the parts that
    the ranks keep, so these parts and the warm-up start again at zero after a restart. The Trainer's checkpoints do
    contain them. A script that averages after each micro-batch reaches the end of the warm-up earlier. A trial of
    `hotloop tune` that is no longer than the warm-up measures only the warm-up.

    ## Numerics
    Lossy: gradients are rounded, or arrive later. Compare the loss. After 2,000 steps of a small language model with
    AdamW (3 seeds; the limit of 4.4 % is the spread over the seeds of plain DDP), the loss with `bf16`, `fp16` and
    `int8` was within 0.1 % of the loss of plain DDP. With `topk`, it ended 1.1 % above plain DDP; with `topk` and
    `warm_up_steps = 100`, it ended 1.3 % below; and with `topk` and the optimizer's own momentum (`most_momentum =
    0.999`), 29 % above. With SGD and `topk`, it ended 7 % above SGD without compression. With `powersgd` from the first
    step on, it ended 8 % above plain DDP; with `powersgd` and `warm_up_steps = 500`, which sends 0.177 of the bytes of
    plain DDP overall, it ended 3.7 % above ([table](communication-quality.md)). Use `powersgd` or `topk` only if your
    own loss tolerates it. A gradient that is infinite or NaN on one rank becomes infinite or NaN on all ranks, so a
    GradScaler skips the step everywhere.
    """

    id = "compress-gradients"
    summary = "send gradients with fewer bits"
    numerics = Numerics.LOSSY
    stage = Stage.LOOP
    treats = ("slow-link",)
    settings = (
        Setting(
            name="method",
            kind=str,
            default="bf16",
            choices=("bf16", "fp16", "int8", "topk", "powersgd"),
            help="how gradients are sent",
        ),
        Setting(
            name="ratio", kind=float, default=0.01, least=1e-5, most=0.5, help="share of the elements that topk sends"
        ),
        Setting(
            name="momentum",
            kind=float,
            default=0.0,
            least=0.0,
            most=0.999,
            help="momentum of topk's kept gradients; an SGD's own momentum replaces it",
        ),
        Setting(name="rank", kind=int, default=4, least=1, most=256, help="rank of powersgd's factors"),
        Setting(
            name="warm_up_steps",
            kind=int,
            default=0,
            least=0,
            most=1_000_000_000,
            help="exchanges in bf16 before topk or powersgd begins",
        ),
        Setting(
            name="most_momentum",
            kind=float,
            default=0.0,
            least=0.0,
            most=0.999,
            help="highest momentum (beta1) that the optimizer keeps with topk",
        ),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        choice, method = strategy.get(self.id), settings["method"]
        given = () if choice is None else choice.settings
        unread = next((name for name in given if method not in READ_BY.get(name, (method,))), None)
        return None if unread is None else why_unread(unread, str(method))

    def why_norms_differ(self, settings: Mapping[str, Value]) -> str:
        if settings.get("method") not in ("topk", "powersgd"):
            return ""
        return f"{settings['method']} sends part of a gradient in later steps, which changes gradient norms by design"

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.compression import hooks_of
        from hotloop.change.apply.ddp import find_ddp

        method = str(settings["method"])
        effect = _register_hooks(model, find_ddp(model), method, settings)
        if isinstance(effect, Applied) and method == "topk":
            context.memory(self.id)["hooks"] = hooks_of(model)
        return effect

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.compression.momentum import lower_momentum

        most = settings["most_momentum"]
        assert isinstance(most, float)
        hooks = context.memory(self.id).get("hooks")
        return lower_momentum(optimizer, hooks, most) if hooks else None


def _register_hooks(model: Any, found: Sequence[Any], method: str, settings: Mapping[str, Value]) -> Effect:
    import torch
    import torch.distributed as dist

    from hotloop.change.apply.compression import make_hook, register
    from hotloop.change.apply.ddp import why_special

    if not found:
        return NotApplicable(why="the model is not a DistributedDataParallel")
    for ddp in found:
        if dist.get_world_size(ddp.process_group) == 1:
            return NotApplicable(why="there is only one rank, so nothing is sent")
        why = why_special(ddp)
        if why is not None:
            return NotApplicable(why=why)
    dtypes = {one.dtype for one in model.parameters() if one.requires_grad}
    if dtypes != {torch.float32}:
        return NotApplicable(why=f"gradients are {', '.join(sorted(map(str, dtypes)))}, not only torch.float32")
    read: dict[str, Any] = {
        name: settings[name] for name, methods in READ_BY.items() if method in methods and name != "most_momentum"
    }
    for ddp in found:
        register(ddp, make_hook(method, **read))
    shown = {name: value for name, value in read.items() if value or name != "warm_up_steps"}
    text = "DDP sends gradients by {method}" + "".join(f", {name} {{{name}:g}}" for name in shown)
    return Applied(text=text, values={"method": method, **shown})
