"""Started by torchrun on two gloo ranks: shared-out optimizers and sharded models beside plain ones, as JSON."""

import copy
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hotloop.change.apply.api import apply_strategy
from hotloop.core.strategy import Choice, Strategy
from hotloop.train.accumulate import micro_batches


def strategy(technique, **settings):
    return Strategy(choices=(Choice(technique=technique, settings=settings),))


def data(count):
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    return [torch.randn(8, 64, generator=generator) for _ in range(count)]


def many():
    return nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 301), nn.Tanh(), nn.Linear(301, 64))


def state_bytes(optimizer):
    return sum(v.numel() * v.element_size() for s in optimizer.state.values() for v in s.values())


def sum_over_ranks(count):
    total = torch.tensor(count)
    dist.all_reduce(total)
    return int(total)


def gap(a, b):
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return float(max((x.detach() - y.detach()).abs().max() / y.detach().abs().max() for x, y in pairs))


def ranks_agree(model):
    mine = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return bool(torch.equal(both[0], both[1]))


def train(model, optimizer, batches, schedule=None):
    for x in batches:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def zero(build, kind, **options):
    torch.manual_seed(0)
    plain = DistributedDataParallel(build())
    treated = copy.deepcopy(plain.module)
    treated = DistributedDataParallel(treated)
    a, b = kind(plain.parameters(), **options), kind(treated.parameters(), **options)
    applied = apply_strategy(strategy("zero-optimizer"), model=treated, optimizer=b)
    b = applied.optimizer
    first, rest = data(12)[:6], data(12)[6:]
    train(plain, a, first, torch.optim.lr_scheduler.StepLR(a, 2, 0.5))
    train(treated, b, first, torch.optim.lr_scheduler.StepLR(b, 2, 0.5))
    try:
        b.state_dict()
        refused = False
    except RuntimeError:
        refused = True
    b.consolidate_state_dict(to=0)
    held = [copy.deepcopy(b.state_dict()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(held)
    (saved,) = held
    loaded = kind(treated.parameters(), **options)
    loaded.load_state_dict(saved)  # the plain optimizer takes it, on any rank
    again = apply_strategy(strategy("zero-optimizer"), model=treated, optimizer=loaded).optimizer
    result = {
        "records": [f"{r.status}: {r.detail}" for r in applied.records],
        "bytes": sum_over_ranks(state_bytes(b.optim)),
        "own_bytes": state_bytes(b.optim),
        "whole_bytes": state_bytes(a),
        "refused": refused,
        "lr": [group["lr"] for group in again.param_groups] == [group["lr"] for group in a.param_groups],
        "state_gap": max(
            float((v - saved["state"][i][k]).abs().max())
            for i, s in a.state_dict()["state"].items()
            for k, v in s.items()
            if isinstance(v, torch.Tensor)
        ),
    }
    train(plain, a, rest)
    train(treated, again, rest)
    return {**result, "gap": gap(treated, plain), "ranks_agree": ranks_agree(treated)}


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def fsdp():
    torch.manual_seed(0)
    plain = DistributedDataParallel(Blocks())
    treated = copy.deepcopy(plain.module)
    late = apply_strategy(strategy("fsdp2"), model=treated, optimizer=torch.optim.AdamW(treated.parameters()))
    applied = apply_strategy(strategy("fsdp2"), model=treated)
    a, b = torch.optim.AdamW(plain.parameters()), torch.optim.AdamW(treated.parameters())
    train(plain, a, data(6))
    for x in data(6):
        b.zero_grad()
        for part in micro_batches(treated, x, 2):
            with part.exchange():
                (treated(part.batch).pow(2).mean() * part.weight).backward()
        b.step()
    whole = copy.deepcopy(plain.module)
    for p, q in zip(whole.parameters(), treated.parameters(), strict=True):
        p.data.copy_(q.full_tensor())
    return {
        "late": [f"{r.status}: {r.detail}" for r in late.records],
        "records": [f"{r.status}: {r.detail}" for r in applied.records],
        "bytes": sum(v.to_local().numel() * 4 for s in b.state.values() for k, v in s.items() if k != "step"),
        "whole_bytes": sum(v.numel() * 4 for s in a.state.values() for k, v in s.items() if k != "step"),
        "gap": gap(whole, plain.module),
    }


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {
        "adamw": zero(many, torch.optim.AdamW, lr=1e-3),
        "fused": zero(many, torch.optim.AdamW, lr=1e-3, fused=True),
        "momentum": zero(many, torch.optim.SGD, lr=0.1, momentum=0.9),
        "fsdp": fsdp(),
    }
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()
    # gloo's threads may still hold tensors while the interpreter ends, which aborts now and then (pytorch#179291).
    os._exit(0)


if __name__ == "__main__":
    main()
