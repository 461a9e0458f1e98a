"""Techniques on unmodified scripts, by `hotloop run --strategy`: what acts, what is refused, and equal losses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOTLOOP = Path(sys.executable).with_name("hotloop")
HEAD = """\
import torch
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.dropout = torch.nn.Dropout(0.2)
    def forward(self, x):
        return x + self.dropout(self.down(torch.tanh(self.up(x))))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.light = {light}
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.light else block(x)
        return x
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
"""
LOOP = """\
for i in range(8):
    x = torch.randn(8, 16)
    optimizer.zero_grad(set_to_none=False)
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
    optimizer.step()
    print(repr(loss.item()))
torch.save(model, "model.pt")
"""
GROWING = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
net = torch.compile(model, backend="aot_eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(6):
    loss = net(torch.randn(4 + i, 4)).pow(2).mean()
    optimizer.zero_grad(); loss.backward()
    optimizer.step()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


def run(folder: Path, script: str, *techniques: str) -> tuple[list[str], dict[str, list[dict[str, Any]]]]:
    """What the script prints under these techniques, and the records by technique."""
    (folder / "train.py").write_text(script)
    tables = "".join("[techniques.{}]\n{}\n".format(*one.partition(":")[::2]) for one in techniques)
    (folder / "fast.toml").write_text(f'schema = "hotloop.strategy/1"\n{tables}')
    options = ["run", "--no-probe", "--strategy", "fast.toml", "--json", "out.json", "--"]
    result = subprocess.run(
        [*([HOTLOOP, *options] if techniques else []), sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    if techniques:
        for one in json.loads((folder / "out.json").read_text())["strategy"]:
            found.setdefault(one["technique"], []).append(one)
    return result.stdout.split(), found


@pytest.fixture(scope="module")
def plain_losses(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run(tmp_path_factory.mktemp("plain"), HEAD.format(light=False) + LOOP)[0]


def test_exact_techniques_give_the_very_same_losses(tmp_path: Path, plain_losses: list[str]) -> None:
    losses, told = run(tmp_path, HEAD.format(light=False) + LOOP, "activation-checkpointing",
                       "foreach-clipping")  # fmt: skip
    assert losses == plain_losses
    assert {key: [one["status"] for one in found] for key, found in told.items()} == {
        "activation-checkpointing": ["applied"],
        "foreach-clipping": ["applied"],
    }
    assert told["foreach-clipping"][0]["where"]["line"] == 27
    assert b"hotloop" not in (tmp_path / "model.pt").read_bytes()


def test_the_scripts_own_checkpoints_are_kept_or_left(tmp_path: Path, plain_losses: list[str]) -> None:
    losses, told = run(tmp_path, HEAD.format(light=True) + LOOP, "keep-activations", "fused-optimizer:override = true")
    assert losses[:2] == plain_losses[:2]
    assert [float(a) for a in losses] == pytest.approx([float(b) for b in plain_losses], rel=1e-4)
    assert [one["status"] for one in told["keep-activations"]] == ["applied"]
    assert told["keep-activations"][0]["where"]["line"] == 18


def test_a_script_that_checkpoints_itself_is_not_nested(tmp_path: Path, plain_losses: list[str]) -> None:
    losses, told = run(tmp_path, HEAD.format(light=True) + LOOP, "activation-checkpointing")
    assert losses == plain_losses
    assert [one["status"] for one in told["activation-checkpointing"]] == ["applied", "not applicable"]


def test_shapes_that_grow_are_compiled_once(tmp_path: Path) -> None:
    graphs, told = run(tmp_path, GROWING, "dynamic-shapes:override = true")
    assert int(graphs[0]) <= 2  # six without
    assert told["dynamic-shapes"][0]["where"]["line"] == 4


def test_an_unmodified_script_is_compiled(tmp_path: Path) -> None:
    script = HEAD.format(light=False).replace("Dropout(0.2)", "Dropout(0.0)") + LOOP
    script += 'print(torch._dynamo.utils.counters["stats"]["unique_graphs"])'
    expected, _ = run(tmp_path, script)
    printed, told = run(tmp_path, script, "compile-model:backend = 'aot_eager'", "bf16-autocast")
    assert int(printed[8]) == 1
    assert [float(a) for a in printed[:8]] == pytest.approx([float(b) for b in expected[:8]], rel=0.1)
    assert [one["status"] for one in told["compile-model"]] == ["applied"]
