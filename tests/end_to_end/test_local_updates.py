"""`hotloop run --strategy` with local-updates: an unmodified DDP script, and one that trains with hotloop's Trainer."""

import json
import subprocess
import sys
from pathlib import Path

import torch

HOTLOOP = Path(sys.executable).with_name("hotloop")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
STRATEGY = """\
schema = "hotloop.strategy/1"
[techniques.local-updates]
steps = 5
outer = "nesterov"
send = "bf16"
"""
SCRIPT = """\
import json
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 4))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.9)
draws = torch.Generator().manual_seed(rank)
seen = []
for step in range(12):
    for micro in range(2):
        x = torch.randn(8, 16, generator=draws)
        loss = (model(x) - x[:, :4]).square().mean() / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step + 1 in (5, 6, 10, 12):
        torch.save(model.state_dict(), f"weights-{step + 1}-{rank}.pt")
    model.eval()
    with torch.no_grad():
        seen.append(model(torch.ones(1, 16)).sum().item())
    model.train()
open(f"seen-{rank}.json", "w").write(json.dumps(seen))
dist.destroy_process_group()
"""
TRAINER = """\
import torch
from torch import nn
from hotloop import Checkpoints, Trainer

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
x = torch.randn(96, 16)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4].tanh()), batch_size=4, shuffle=True)

def step(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])

trainer = Trainer(
    model, lambda parameters: torch.optim.AdamW(parameters, 1e-2), step, checkpoint=Checkpoints(folder="kept")
)
trainer.fit(loader, max_steps=7)
"""


def run_with(folder: Path, script: str) -> list[dict[str, object]]:
    """What the report says of the strategy."""
    (folder / "train.py").write_text(script)
    (folder / "fast.toml").write_text(STRATEGY)
    words = [HOTLOOP, "run", "--no-probe", "--strategy", "fast.toml", "--json", "out.json", "--", *TORCHRUN]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, object]] = json.loads((folder / "out.json").read_text())["strategy"]
    return found


def test_an_unmodified_script_trains_apart_and_meets_every_fifth_step(tmp_path: Path) -> None:
    told = run_with(tmp_path, SCRIPT)
    assert [(one["status"], one["ranks"]) for one in told] == [("applied", [0, 1])]
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    # After step 1 only batch norm's statistics differ: they are sent before the next forward.
    assert [step + 1 for step, (one, two) in enumerate(zip(*seen, strict=True)) if one == two] == [5, 10]
    for step in (5, 6, 10, 12):
        one, two = (torch.load(tmp_path / f"weights-{step}-{rank}.pt", weights_only=True) for rank in (0, 1))
        assert all(torch.equal(one[name], two[name]) for name in one) == (step in (5, 10)), step


def test_a_trainer_in_the_script_takes_it_over_and_keeps_each_ranks_state(tmp_path: Path) -> None:
    told = run_with(tmp_path, TRAINER)
    assert [one["status"] for one in told] == ["applied"]
    kept = tmp_path / "kept" / "step-00000007"
    assert json.loads((kept / "state.json").read_text())["has_replicas"]
    own = [json.loads((kept / f"rank-0000{rank}.json").read_text())["trees"]["replica"] for rank in (0, 1)]
    assert [one["rounds"]["position"] for one in own] == [2, 2]
