"""Several ranks on gloo: every rank is seen, what they exchange is told from what they wait for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .training import HEAD, Ran, run_command, write_script

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

DDP = (
    HEAD
    + """
import time, os
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
)


def run_ranks(folder: Path, text: str, *options: str) -> Ran:
    # An interpreter that ends at once may be aborted by a thread of gloo, hotloop or not.
    script = write_script(folder, text.rstrip() + "\n        time.sleep(0.2)\n", head=DDP)
    return run_command(folder, *TORCHRUN, script.name, options=options)


def test_a_slow_rank_is_the_straggler(tmp_path: Path) -> None:
    ran = run_ranks(
        tmp_path,
        """
        model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def prepare():
            t = time.perf_counter()
            while time.perf_counter() - t < 0.02:
                sum(range(1000))
        for step in range(60):
            optimizer.zero_grad()
            if rank == 1:
                prepare()
            loss_of(model(x), y).backward()
            optimizer.step()
        dist.destroy_process_group()
        """,
    )
    assert ran.exit_code == 0, ran.stderr
    report = ran.seen
    assert [r["rank"] for r in report["ranks"]] == [0, 1]
    assert [r["steps"] for r in report["ranks"]] == [60, 60]
    assert all(r["world_size"] == 2 for r in report["ranks"])
    # On busy cores its saving is unsure, and a small tip may stand before it.
    first = next(one for one in report["findings"] if one["kind"] == "fault")
    assert first["rule"] == "straggler", json.dumps(report["findings"])[:3000]
    assert first["ranks"] == [1]
    assert len(list((ran.run_folder / "processes").glob("*.hlr"))) == 2


def test_sync_at_every_micro_step(tmp_path: Path) -> None:
    ran = run_ranks(
        tmp_path,
        """
        class Wrapped(nn.Module):  # as frameworks hand it out
            def __init__(self, module):
                super().__init__()
                self.module = module
            def forward(self, x):
                return self.module(x)
        model = nn.Sequential(nn.Linear(32, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.Linear(1500, 8))
        model = Wrapped(nn.parallel.DistributedDataParallel(model))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(40):
            for micro in range(4):
                (loss_of(model(x), y) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()
        """,
    )
    assert ran.exit_code == 0, ran.stderr
    assert ran.seen["step"]["count"] == 40
    assert "sync-every-microstep" in [f["rule"] for f in ran.seen["findings"]]
    # What torch's reducer measured was read below the wrapper.
    assert "exposed-communication" not in [rule["rule"] for rule in ran.seen["skipped"]]


@pytest.mark.parametrize("keeps", [False, True])
def test_fully_sharded(tmp_path: Path, keeps: bool) -> None:
    """Three micro-batches a step: gradients are spread after each of them, or kept until the last."""
    ran = run_ranks(
        tmp_path,
        f"""
        keeps = {keeps}
        from torch.distributed.fsdp import fully_shard
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(30):
            optimizer.zero_grad()
            for micro in range(3):
                model.set_requires_gradient_sync(not keeps or micro == 2)
                loss_of(model(x), y).backward()
            optimizer.step()
        dist.destroy_process_group()
        """,
    )
    assert ran.exit_code == 0, ran.stderr
    assert [r["steps"] for r in ran.seen["ranks"]] == [30, 30]
    told = [one["evidence"] for one in ran.seen["findings"] if one["rule"] == "sync-every-microstep"]
    assert [(one["backwards_per_step"], one["synchronised_per_step"]) for one in told] == [(3.0, 3.0)][keeps:]
    assert abs(sum(p["share_ratio"] for p in ran.seen["breakdown"].values()) - 1) < 1e-9


def test_own_collectives_are_communication(tmp_path: Path) -> None:
    ran = run_ranks(
        tmp_path,
        """
        model = nn.Linear(1000, 2000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.randn(4, 1000)
        for step in range(30):
            optimizer.zero_grad()
            model(data).sum().backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
        dist.destroy_process_group()
        """,
    )
    assert ran.exit_code == 0, ran.stderr
    assert ran.phase("communication")["share_ratio"] > 0.1


def test_a_restart_is_told_apart(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        for step in range(20 if first else 50):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            if first and step == 15 and rank == 1:
                os._exit(1)
        """,
        head=HEAD + "import os\nrank = int(os.environ['RANK'])\n",
    )
    command = (*TORCHRUN, "--max-restarts", "1", script.name)
    ran = run_command(tmp_path, *command)
    assert ran.exit_code == 0, ran.stderr
    assert {r["restart"] for r in ran.seen["ranks"]} == {1}
    assert [r["steps"] for r in ran.seen["ranks"]] == [50, 50]
