"""Started by torchrun on two gloo ranks: trainings with and without a technique, and what came of each, as JSON.

This file never touches a parameter's gradient by name: the technique under test looks for that in loaded sources.
"""

import json
import os
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hotloop.change.apply import TECHNIQUES, rhythm
from hotloop.change.apply.applier import make_context
from hotloop.change.apply.compression import METHODS, make_hook, register
from hotloop.change.apply.rhythm import Rhythm
from hotloop.core.strategy import Choice, Strategy


def build(seed=0, norm=False, **options):
    torch.manual_seed(seed)
    layers = [nn.Linear(16, 32), nn.BatchNorm1d(32) if norm else nn.Tanh(), nn.Tanh(), nn.Linear(32, 4)]
    return DistributedDataParallel(nn.Sequential(*layers), **options)


def data(count):
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [torch.randn(8, 16, generator=generator) for _ in range(count)]


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in (*model.parameters(), *model.buffers())])


def ranks_agree(model):
    mine = flat(model)
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return bool(torch.equal(both[0], both[1]))


def accumulate(
    windows, *, learned, clip=None, norm=False, carry=False, drop=False, closure=False, method=None, **options
):
    """Train over windows of micro-batches; answers the parameters, what was said, and the local backwards."""
    model = build(norm=norm, **options)
    if method is not None:
        register(model, make_hook(method))
    # A bias before a BatchNorm has no gradient but rounding, which Adam would blow up to whole steps.
    make = torch.optim.SGD if norm else torch.optim.AdamW
    optimizer = make(model.parameters(), lr=1e-2)
    said, local = [], [0]
    watch = (
        Rhythm(model, 4, lambda text, values: said.append((text.format_map(values or {}), values is not None)))
        if learned
        else None
    )
    if watch is not None:
        watch.watch_optimizer(optimizer)

    def count(module, args):
        local[0] += not model.require_backward_grad_sync

    model.module.register_forward_pre_hook(count)
    batches = iter(data(sum(windows)))

    def backward():
        loss = model(next(batches)).pow(2).mean()
        loss.backward()
        return loss

    def clip_now():
        if watch is not None:
            watch.before_use(False)  # what hotloop's patch of clip_grad_norm_ does first
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    for index, window in enumerate(windows):
        if closure:
            optimizer.step(backward)
            optimizer.zero_grad()
            continue
        for _ in range(window):
            backward()
            if clip == "each":
                clip_now()
        if carry and index % 3 == 2:
            continue  # the leftover of an epoch goes into the next one's first step
        if drop and index % 3 == 2:
            optimizer.zero_grad()  # ... or is thrown away
            continue
        if clip:
            clip_now()
        optimizer.step()
        optimizer.zero_grad()
    return model, said, local[0]


def compare(windows, **options):
    plain, _, _ = accumulate(windows, learned=False, **options)
    treated, said, local = accumulate(windows, learned=True, **options)
    return {
        "said": said,
        "local": local,
        "difference": float((flat(plain) - flat(treated)).abs().max() / flat(plain).abs().max()),
        "ranks_agree": ranks_agree(treated),
    }


class Choosy(nn.Module):
    """The second layer is used by rank 0 in every forward, by rank 1 only from the sixth on."""

    def __init__(self, choosy):
        super().__init__()
        self.a, self.b, self.choosy, self.calls = nn.Linear(16, 16), nn.Linear(16, 16), choosy, 0

    def forward(self, x):
        self.calls += 1
        x = self.a(x)
        return x if self.choosy and dist.get_rank() == 1 and self.calls < 6 else x + self.b(x)


class Straight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def scan(module, treated, view=False, **settings):
    """Train with find_unused_parameters=True; answers the model, what was reported and whether the scan is still on."""
    strategy = Strategy(choices=(Choice(technique="ddp-settings", settings=settings),))
    told = []
    context = make_context(strategy, from_outside=True)
    context.on_report = lambda technique, effect: told.append(effect)
    torch.manual_seed(0)
    model = DistributedDataParallel(module(), find_unused_parameters=True, gradient_as_bucket_view=view)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if treated:
        technique = TECHNIQUES["ddp-settings"]
        full = {setting.name: setting.default for setting in technique.settings} | settings
        told.append(technique.change_model(model, full, context))
    for x in data(20):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return model, [str(effect) for effect in told if effect is not None], model.find_unused_parameters


def compare_scan(module, **settings):
    plain, _, _ = scan(module, False)
    treated, told, scans = scan(module, True, **settings)
    equal = bool(torch.equal(flat(plain), flat(treated)))
    return {"told": told, "scans": scans, "equal": equal, "ranks_agree": ranks_agree(treated)}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rng = random.Random(0)
    found = {
        "even": compare([4] * 20),
        "uneven": compare([4, 4, 2] * 8),
        "uneven_clipped": compare([4, 4, 2] * 8, clip="before"),
        "clipped_each": compare([4] * 20, clip="each"),
        "carried": compare([4, 4, 2] * 8, carry=True),
        "dropped": compare([4, 4, 2] * 8, drop=True),
        "buffers": compare([4, 4, 3] * 8, norm=True),
        "view": compare([4, 4, 2] * 8, gradient_as_bucket_view=True),
        "static": compare([4, 4, 2] * 8, static_graph=True),
        "small_buckets": compare([3, 3, 1] * 8, bucket_cap_mb=0.001),
        **{f"sent_by_{method}": compare([4, 4, 2] * 8, method=method, bucket_cap_mb=0.001) for method in METHODS},
        "single": compare([1] * 30),
        "varying": compare([rng.randint(1, 9) for _ in range(260)]),
        "closure": compare([1] * 40, closure=True),
        "scan": compare_scan(Straight),
        "scan_view": compare_scan(Straight, view=True),
        "scan_branch": compare_scan(lambda: Choosy(False)),
        "scan_assumed": compare_scan(lambda: Choosy(False), assume_all_used=True),
        "scan_unused": compare_scan(lambda: Choosy(True), assume_all_used=True),
    }
    rhythm.average_gradients = lambda ddp, parameters: None
    found["sabotaged"] = compare([4, 4, 2] * 8)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()
    # gloo's threads may still hold tensors while the interpreter ends, which aborts now and then (pytorch#179291).
    os._exit(0)


if __name__ == "__main__":
    main()
