"""Two gloo ranks that train with each hook -> what came of it, as JSON of rank 0: `torchrun ... hook_ranks.py OUT`."""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hotloop import CompressedDDP, HotloopError
from hotloop.change.apply.compression import (
    CastHook,
    GradientHook,
    Int8Hook,
    LowRankHook,
    TopKHook,
    WarmUpHook,
    register,
)

HOOKS = {
    "bf16": lambda: CastHook(torch.bfloat16),
    "fp16": lambda: CastHook(torch.float16),
    "int8": lambda: Int8Hook(),
    "topk": lambda: TopKHook(0.05),
    "topk_momentum": lambda: TopKHook(0.05, momentum=0.9),
    "powersgd": lambda: LowRankHook(2),
    "topk_warm": lambda: WarmUpHook(TopKHook(0.05), 4),
    "powersgd_warm": lambda: WarmUpHook(LowRankHook(2), 9),
}


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8))


def wrap(hook: GradientHook | None) -> DistributedDataParallel:
    model = DistributedDataParallel(build(), bucket_cap_mb=0.01)
    if hook is not None:
        register(model, hook)
    return model


def batch(step: int, micro: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(1000 * step + 10 * micro + dist.get_rank())
    x = torch.randn(16, 32, generator=draws)
    return x, x[:, :8].tanh()


def train(model: DistributedDataParallel, steps: range, accumulate: int = 1) -> float:
    """The last loss, averaged over the ranks."""
    loss = torch.zeros(())
    for step in steps:
        model.zero_grad()
        for micro in range(accumulate - 1):
            with model.no_sync():
                nn.functional.mse_loss(model(batch(step, micro + 1)[0]), batch(step, micro + 1)[1]).backward()
        x, y = batch(step)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.2 * parameter.grad)
    shared = loss.detach().clone()
    dist.all_reduce(shared)
    return float(shared) / dist.get_world_size()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def agree(tensor: torch.Tensor) -> bool:
    """Whether all ranks hold the same bits."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return all(torch.equal(part.view(torch.int32), parts[0].view(torch.int32)) for part in parts)


def resume(name: str) -> dict[str, Any]:
    """Train 12 steps; and 6, a checkpoint of each rank through a file's bytes, and 6 more in new objects."""
    whole = wrap(HOOKS[name]())
    train(whole, range(12))
    first_hook = HOOKS[name]()
    first = wrap(first_hook)
    train(first, range(6))
    file = io.BytesIO()
    torch.save({"model": first.module.state_dict(), "hook": first_hook.state_dict()}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    second_hook = HOOKS[name]()
    second = wrap(second_hook)
    second.module.load_state_dict(kept["model"])
    second_hook.load_state_dict(kept["hook"])
    again = second_hook.state_dict()
    same_state = all(
        torch.equal(kept["hook"].get("later", kept["hook"])[part][key], piece)
        for part in ("unsent", "right")
        for key, piece in again.get("later", again).get(part, {}).items()
    )
    train(second, range(6, 12))
    return {"same_state": same_state, "same_weights": torch.equal(weights(whole), weights(second))}


def poison(name: str) -> dict[str, Any]:
    """One rank's gradient is infinite in one step: what arrives, and what the next steps see of it."""
    model = wrap(HOOKS[name]())
    train(model, range(3))
    x, y = batch(3)
    model.zero_grad()
    bad = x.clone()
    bad[0, 0] = torch.inf if dist.get_rank() == 1 else 0.0
    nn.functional.mse_loss(model(bad), y).backward()
    seen = [not bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters()]  # type: ignore[arg-type]
    model.zero_grad()
    loss = train(model, range(4, 8))
    return {"arrived": any(seen), "finite_after": bool(torch.isfinite(weights(model)).all()), "loss": loss}


def warm_up(name: str, steps: int) -> dict[str, Any]:
    """A training that begins late is bf16's until then, under accumulation too, and another one from then on."""
    late, short = wrap(HOOKS[name]()), wrap(CastHook())
    found = {}
    for when, part in (("equal_until", range(steps)), ("equal_afterwards", range(steps, steps + 1))):
        for model in (late, short):
            train(model, part, accumulate=2)
        found[when] = torch.equal(weights(late), weights(short))
    return found


def wrap_in_one_line() -> dict[str, Any]:
    """CompressedDDP trains, says what it does, and goes on from its state."""
    model = CompressedDDP(build(), method="topk", ratio=0.05, bucket_cap_mb=0.01)
    train(model, range(3))
    state = model.compression_state()
    again = CompressedDDP(build(), method="topk", ratio=0.05, bucket_cap_mb=0.01)
    again.module.load_state_dict(model.module.state_dict())
    again.load_compression_state(state)
    train(model, range(3, 6))
    train(again, range(3, 6))
    try:
        CompressedDDP(build(), method="int8").load_compression_state(state)
        refused = ""
    except HotloopError as error:
        refused = str(error)
    return {
        "agree": agree(weights(model)),
        "goes_on": torch.equal(weights(model), weights(again)),
        "compression": model.compression,
        "shown": "topk" in repr(model),
        "refused": refused,
    }


def main(out: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"plain": {"loss": train(wrap(None), range(40))}}
    for name, make in HOOKS.items():
        model = wrap(make())
        one: dict[str, Any] = {"loss": train(model, range(40)), "agree": agree(weights(model))}
        accumulated = wrap(make())
        train(accumulated, range(6), accumulate=3)
        one["agree_accumulated"] = agree(weights(accumulated))
        one["poison"] = poison(name)
        one["resume"] = resume(name) if make().state_dict() else None
        found[name] = one
    found["one line"] = wrap_in_one_line()
    found["warm-up"] = {"topk": warm_up("topk_warm", 4), "powersgd": warm_up("powersgd_warm", 9)}
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads may still hold what `agree` gathered; asking for the lock at exit they would abort


if __name__ == "__main__":
    main(sys.argv[1])
