"""What the hooks add to a step: blocks of steps with and without them, in turn, in one process (docs/overhead.md).

    python benchmarks/hooks.py            # six loops, each under `hotloop run`; benchmarks/results/hooks.json

Compared is the CPU time of the thread that trains. "noted" notes every event; "rested" is what people have, where hooks
rest for some steps once they would cost more than 1 % of the time.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import passes

LOOPS = {"mlp": 60, "tiny": 400, "rollout": 800, "modules": 12, "ten-ms": 6, "ddp": 40}
"""Steps (forwards of the rollout) in a block."""
BLOCKS = 60


def make_loop(name: str, torch: Any) -> Callable[[], None]:
    nn = torch.nn
    if name == "tiny":
        layer, x = nn.Linear(4, 1), torch.randn(4, 4)
        return _step(layer, lambda: layer(x).mean(), torch)
    if name == "rollout":
        policy, seen = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)), torch.randn(1, 8)

        def act() -> None:
            with torch.no_grad():
                policy(seen)

        return act
    if name == "modules":
        deep = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32)) for _ in range(100)))
        x = torch.randn(8, 32)
        return _step(deep, lambda: deep(x).square().mean(), torch)
    width = 1024 if name == "ten-ms" else 256
    net: Any = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    if name == "ddp":
        torch.distributed.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(net)
    data = torch.utils.data.TensorDataset(torch.randn(640_000, 64), torch.randint(0, 10, (640_000,)))
    loader = torch.utils.data.DataLoader(data, batch_size=160 if name == "ten-ms" else 32)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    criterion = nn.CrossEntropyLoss()

    def loss() -> Any:
        x, y = next(batches)
        return criterion(net(x), y)

    return _step(net, loss, torch)


def _step(model: Any, loss: Callable[[], Any], torch: Any) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def measure(name: str) -> None:
    """In the training: blocks with and without hooks, in turn; one line of JSON."""
    from _thread import get_ident

    import torch

    from hotloop.agent.attach.agent import current_agent

    torch.set_num_threads(1)
    agent = current_agent()
    assert agent is not None
    step, steps = make_loop(name, torch), LOOPS[name]
    for _ in range(300 if name != "ten-ms" else 30):
        step()
    found, off_ns = {}, time.perf_counter_ns()
    for way in ("noted", "rested"):
        agent.may_rest = way == "rested"
        if way == "noted":
            agent.resting, agent.rests_for = False, 0
        times: dict[bool, list[float]] = {True: [], False: []}
        for block in range(BLOCKS):
            for is_on in (True, False) if block % 2 else (False, True):
                agent.owner = get_ident() if is_on else 0
                if is_on:  # the blocks without hooks are not part of the time that the budget is a share of
                    (before_ns, before), now_ns = agent.weighed_at, time.perf_counter_ns()
                    agent.weighed_at = (before_ns + now_ns - off_ns, before)
                else:
                    agent.resting, off_ns = False, time.perf_counter_ns()
                if way == "noted":
                    agent.rests_for = agent.skips = agent.without_gradients = 0
                start = time.thread_time()
                for _ in range(steps):
                    step()
                times[is_on].append((time.thread_time() - start) / steps * 1e6)
        added = sorted(on - off for on, off in zip(times[True], times[False], strict=True))
        found[way] = {
            "alone_us": round(statistics.median(times[False]), 2),
            "added_us": round(statistics.median(added), 2),
            "added_low_us": round(added[len(added) // 4], 2),
            "added_high_us": round(added[3 * len(added) // 4], 2),
        }
    if name == "ddp":
        rank = torch.distributed.get_rank()
        torch.distributed.destroy_process_group()
        time.sleep(0.2)
        if rank:
            return
    print("ROW " + json.dumps({"n": BLOCKS, **found}), flush=True)


def measure_under_hotloop(name: str) -> dict[str, Any]:
    """A loop's row, from a training under `hotloop run`."""
    python = [sys.executable]
    if name == "ddp":
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("hotloop")), "run", "-q", "--no-probe", "--", *python, __file__, name],
            cwd=folder, capture_output=True, text=True, timeout=600, check=True,
        )  # fmt: skip
    (found,) = (json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW "))
    row: dict[str, Any] = found
    return row


LIMITS_US = {"mlp": 30.0, "tiny": 30.0, "rollout": 5.0, "modules": 30.0, "ten-ms": 50.0, "ddp": 30.0}
NAMES = {
    "mlp": "3-layer MLP with a DataLoader, a step",
    "tiny": "a layer of four weights, a step",
    "rollout": "a forward without gradients",
    "modules": "201 modules, a step",
    "ten-ms": "a larger MLP, a step",
    "ddp": "the MLP under DDP, two ranks, a step",
}


def draw_page(table: Mapping[str, Any]) -> str:
    """docs/overhead.md."""
    lines = [
        "# What hotloop costs",
        "",
        f"Measured by `make overhead` on {table['date']} at {table['commit']}: "
        f"{passes.describe_place(table['machine'])}. Raw numbers: `benchmarks/results/hooks.json`.",
        "",
        "CPU time of the thread that trains, in us: the median of the differences of pairs of blocks with and without "
        "hooks within one process, and its quartiles. *Noted*: every event is noted. *Rested*: as it is, where hooks "
        "rest for some steps once they would cost more than 1 % of the time.",
        "",
        "| loop | alone | noted | quartiles | rested | quartiles | limit | pairs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table["rows"]:
        noted, rested, limit = row["noted"], row["rested"], LIMITS_US[row["case"]]
        lines.append(
            f"| {NAMES[row['case']]} | {noted['alone_us']} | {noted['added_us']} | {noted['added_low_us']} to "
            f"{noted['added_high_us']} | {rested['added_us']} | {rested['added_low_us']} to "
            f"{rested['added_high_us']} | {limit:g}{'' if noted['added_us'] <= limit else ', missed by *noted*'} | "
            f"{row['n']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in LOOPS:
        measure(sys.argv[1])
    else:
        sys.exit(passes.measure(__doc__, "hooks.json", {name: partial(measure_under_hotloop, name) for name in LOOPS}))
