"""Gloo ranks that train with local-updates -> what came of it, as JSON: `torchrun ... rounds_ranks.py OUT`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hotloop.apply.api import AppliedStrategy, apply_strategy
from hotloop.core.strategy import Choice, Strategy

STEPS, EVERY = 13, 4
PLANS: dict[str, dict[str, Any]] = {
    f"{outer}, {send}": {"steps": EVERY, "outer": outer, "send": send}
    for outer in ("average", "nesterov")
    for send in ("float32", "bf16")
}


def build() -> nn.Module:
    """No bias before batch norm: its gradient would be nothing but rounding, which AdamW makes full steps of."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 48, bias=False), nn.BatchNorm1d(48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4)
    )


def make_optimizer(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.8)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
    return x, x[:, :4].tanh()


def apply_to(model: Any, optimizer: Any, settings: dict[str, Any], **more: Any) -> AppliedStrategy:
    strategy = Strategy(choices=(Choice(technique="local-updates", settings=settings),))
    return apply_strategy(strategy, model=model, optimizer=optimizer, **more)


def train(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    steps: range,
    rank: int,
    then: Callable[[int], None] = lambda step: None,
) -> None:
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(step, rank)
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        then(step)


def bits(model: nn.Module) -> torch.Tensor:
    """Parameters and buffers as whole numbers."""
    tensors = [*model.parameters(), *model.buffers()]
    return torch.cat([one.detach().float().flatten() for one in tensors]).view(torch.int32)


def is_equal(tensor: torch.Tensor) -> bool:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return all(torch.equal(part, parts[0]) for part in parts)


def equal_after(settings: dict[str, Any]) -> dict[str, Any]:
    """After which steps (from 1) all ranks hold the same bits, buffers included."""
    model = DistributedDataParallel(build())
    optimizer, scheduler = make_optimizer(model)
    applied = apply_to(model, optimizer, settings)
    found: list[int] = []
    train(
        model,
        optimizer,
        scheduler,
        range(STEPS),
        dist.get_rank(),
        lambda step: found.append(step + 1) if is_equal(bits(model)) else None,
    )
    records = [[one.status, one.detail] for one in applied.applier.records]
    return {"equal_after": found, "records": records, "loss": evaluate(model)}


def warm_up() -> dict[str, Any]:
    """After which steps the ranks hold the same weights, and whether those of the warm-up's end are plain DDP's."""
    model, alone = DistributedDataParallel(build()), DistributedDataParallel(build())
    optimizer, scheduler = make_optimizer(model)
    apply_to(model, optimizer, {**PLANS["nesterov, bf16"], "warm_up_steps": 6})
    train(alone, *make_optimizer(alone), range(6), dist.get_rank())
    found: dict[str, Any] = {"equal_after": []}

    def look(step: int) -> None:
        if is_equal(torch.cat([one.detach().flatten() for one in model.parameters()]).view(torch.int32)):
            found["equal_after"].append(step + 1)
        if step + 1 == 6:
            found["is_plain"] = torch.equal(bits(model), bits(alone))

    train(model, optimizer, scheduler, range(STEPS), dist.get_rank(), look)
    return found


def evaluate(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(batch(999, 0)[0]), batch(999, 0)[1]))


def reference(settings: dict[str, Any]) -> nn.Module:
    """This rank's model after STEPS, from both ranks' trainings in one process and torch's own outer optimizer."""
    models = [build(), build()]
    tools = [make_optimizer(model) for model in models]
    anchor = build()
    outer = torch.optim.SGD(anchor.parameters(), lr=0.7, momentum=0.5, nesterov=True)
    for step in range(STEPS):
        for rank, (model, (optimizer, _)) in enumerate(zip(models, tools, strict=True)):
            optimizer.zero_grad()
            x, y = batch(step, rank)
            nn.functional.mse_loss(model(x), y).backward()
        if step == 0:
            for pair in zip(*(model.parameters() for model in models), strict=True):
                mean = sum(one.grad / 2 for one in pair)  # type: ignore[operator]
                for one in pair:
                    one.grad = mean.clone()
        for model, (optimizer, scheduler) in zip(models, tools, strict=True):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
        if step == 0:
            anchor.load_state_dict(models[0].state_dict())
        if (step + 1) % EVERY:
            continue
        with torch.no_grad():
            for target, *pair in zip(anchor.parameters(), *(model.parameters() for model in models), strict=True):
                mean = sum(one / 2 for one in pair)
                if settings["outer"] == "average":
                    target.copy_(mean)
                else:
                    target.grad = target - mean
            if settings["outer"] == "nesterov":
                outer.step()
            for target, *pair in zip(anchor.buffers(), *(model.buffers() for model in models), strict=True):
                target.copy_(sum(one / 2 for one in pair) if target.is_floating_point() else pair[0])
            for model in models:
                model.load_state_dict(anchor.state_dict())
    return models[dist.get_rank()]


def distance_to_reference(settings: dict[str, Any]) -> float:
    """The largest difference of a weight or buffer, one step after a round, on any rank."""
    model = DistributedDataParallel(build())
    optimizer, scheduler = make_optimizer(model)
    apply_to(model, optimizer, settings)
    train(model, optimizer, scheduler, range(STEPS), dist.get_rank())
    wanted = reference(settings)
    pairs = zip([*model.parameters(), *model.buffers()], [*wanted.parameters(), *wanted.buffers()], strict=True)
    worst = torch.tensor(max(float((one - two).abs().max()) for one, two in pairs))
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def mean_between_rounds() -> dict[str, bool]:
    """``mean_weights`` two steps after a round, with bf16: what the model has inside, and afterwards."""
    model = DistributedDataParallel(build())
    optimizer, scheduler = make_optimizer(model)
    applied = apply_to(model, optimizer, PLANS["nesterov, bf16"])
    train(model, optimizer, scheduler, range(6), dist.get_rank())
    own = bits(model)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    mean = weights / 2
    dist.all_reduce(mean)
    with applied.applier.context.memory("local-updates")["rounds"].mean_weights():
        inside = bits(model)
        found = torch.cat([one.detach().flatten() for one in model.parameters()])
    return {
        "differs_before": not is_equal(own),
        "equal_inside": is_equal(inside),
        "is_mean": torch.equal(found, mean),
        "own_afterwards": torch.equal(own, bits(model)),
    }


def spread_nan() -> list[int]:
    """A weight of rank 1 is NaN after step 5: after which steps every rank has one."""
    model = DistributedDataParallel(build())
    optimizer, scheduler = make_optimizer(model)
    apply_to(model, optimizer, PLANS["nesterov, bf16"])
    found: list[int] = []

    def look(step: int) -> None:
        if step + 1 == 5 and dist.get_rank() == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] = torch.nan
        count = torch.tensor(int(any(bool(one.isnan().any()) for one in model.parameters())))
        dist.all_reduce(count)
        if int(count) == dist.get_world_size():
            found.append(step + 1)

    train(model, optimizer, scheduler, range(9), dist.get_rank(), look)
    return found


def refusal(prepare: Callable[[], tuple[Any, Any, dict[str, Any]]]) -> list[str]:
    """The reasons of both ranks. Weights must be equal after every step, as in the plain training."""
    model, optimizer, more = prepare()
    applied = apply_to(model, optimizer, {"steps": EVERY}, **more)
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step, dist.get_rank())
        dtype = next(model.parameters()).dtype
        nn.functional.mse_loss(model(x.to(dtype)), y.to(dtype)).backward()
        optimizer.step()
    said = next((one.detail for one in applied.applier.records if one.status == "not applicable"), "")
    reasons: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, said)
    return reasons


def plain() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    model = DistributedDataParallel(build())
    return model, torch.optim.SGD(model.parameters(), 0.1)


def with_scaler() -> tuple[Any, Any, dict[str, Any]]:
    return *plain(), {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0)}


def with_half_weights() -> tuple[Any, Any, dict[str, Any]]:
    model = DistributedDataParallel(build().to(torch.bfloat16))
    return model, torch.optim.SGD(model.parameters(), 0.1), {}


def with_hook() -> tuple[Any, Any, dict[str, Any]]:
    from hotloop.apply.compression import make_hook, register

    model, optimizer = plain()
    register(model, make_hook("bf16"))
    return model, optimizer, {}


def with_other_weights() -> tuple[Any, Any, dict[str, Any]]:
    model, optimizer = plain()
    with torch.no_grad():
        next(model.parameters()).add_(dist.get_rank())
    return model, optimizer, {}


def with_shared_optimizer() -> tuple[Any, Any, dict[str, Any]]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(build())
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1), {}


def with_fsdp() -> tuple[Any, Any, dict[str, Any]]:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(build())
    return model, torch.optim.SGD(model.parameters(), 0.1), {}


def main(out: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found: dict[str, Any]
    found = {name: equal_after(settings) for name, settings in PLANS.items()}
    for name in ("average, float32", "nesterov, float32"):
        found[name]["distance"] = distance_to_reference(PLANS[name])
    found["warm-up"] = warm_up()
    found["mean"] = mean_between_rounds()
    found["nan"] = spread_nan()
    preparations = (with_scaler, with_half_weights, with_hook, with_other_weights, with_shared_optimizer, with_fsdp)
    found["refused"] = {prepare.__name__: refusal(prepare) for prepare in preparations}
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
