"""`hotloop run --strategy`: an unmodified script trains with the techniques, and the report says what was changed."""

import json
import subprocess
import sys
from pathlib import Path

HOTLOOP = Path(sys.executable).with_name("hotloop")
SCRIPT = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for i in range(20):
    x = torch.randn(8, 16)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print(optimizer.param_groups[0]["fused"], loss.dtype)
"""


def run_with(tmp_path: Path, strategy: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "fast.toml").write_text(strategy)
    command = [HOTLOOP, "run", "--no-probe", "--strategy", "fast.toml", "--json", "out.json", "--"]
    result = subprocess.run(
        [*command, sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    return result, tmp_path / "out.json"


def test_techniques_act_on_an_unmodified_script(tmp_path: Path) -> None:
    text = 'schema = "hotloop.strategy/1"\n[techniques.fused-optimizer]\n[techniques.bf16-autocast]\n'
    result, out = run_with(tmp_path, text)
    assert result.stdout.split() == ["True", "torch.float32"]
    assert result.returncode == 0
    told = {one["technique"]: one for one in json.loads(out.read_text())["strategy"]}
    assert told["fused-optimizer"]["status"] == "applied"
    assert told["fused-optimizer"]["where"]["line"] == 4
    assert told["bf16-autocast"]["numerics"] == "lossy"
    assert "STRATEGY" in result.stderr


def test_a_wrong_strategy_starts_nothing(tmp_path: Path) -> None:
    result, out = run_with(tmp_path, 'schema = "hotloop.strategy/1"\n[techniques.fused-optimiser]\n')
    assert result.returncode == 2
    assert result.stdout == ""
    assert "did you mean 'fused-optimizer'?" in result.stderr
    assert not out.exists()
    assert not (tmp_path / ".hotloop").exists()
