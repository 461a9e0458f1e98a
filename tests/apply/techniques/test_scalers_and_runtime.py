"""Scalers, threads, garbage, and variables: what acts, what is refused, and exact numbers."""

import gc
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.change.apply.applier import Applier
from hotloop.change.apply.environment import set_variables
from hotloop.change.apply.techniques.scalers import _decide
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.techniques import NotApplicable

from .small import apply_one as apply
from .small import outside


def strategy_of(technique: str, settings: Any = None) -> Strategy:
    return check_strategy(Strategy(choices=(Choice(technique=technique, settings=settings or {}),)), TECHNIQUES)


# -- scalers ----------------------------------------------------------------------------------------------------------


def train_scaled(scaler: Any, dtype: Any, model: nn.Module | None = None) -> list[float]:
    torch.manual_seed(0)
    model = model or nn.Linear(8, 8)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(10):
        with torch.autocast("cpu", dtype=dtype):
            y = model(torch.ones(4, 8))
        loss = y.float().pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def test_a_dropped_scaler_gives_the_same_losses_and_a_state_to_resume_from() -> None:
    want = train_scaled(torch.amp.GradScaler("cpu"), torch.bfloat16)
    scaler, model = torch.amp.GradScaler("cpu"), nn.Linear(8, 8)
    applied = apply("drop-scaler", {"enabled": False}, model=model, scaler=scaler)
    assert train_scaled(scaler, torch.bfloat16, model) == want
    assert not scaler.is_enabled()
    again = torch.amp.GradScaler("cpu", init_scale=2.0)
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 65536.0
    applied.undo()
    assert scaler.is_enabled()


def step_outside(applier: Applier, *models: tuple[Any, Any], scaler: Any = None, steps: int = 3) -> Any:
    """Steps of a script whose models, each with what autocast is on, share a scaler."""
    scaler = scaler or torch.amp.GradScaler("cpu")
    applier.scaler_built(scaler)
    for _ in range(steps):
        for model, dtype in models:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = applier.model_met(model)(torch.ones(2, 2)).float().pow(2).mean()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    return scaler


def test_float16_on_a_cpu_may_go_without_a_scaler_and_is_called_lossy() -> None:
    applier = outside("drop-scaler")
    assert not step_outside(applier, (nn.Linear(2, 2), torch.float16)).is_enabled()
    assert [one.numerics for one in applier.records] == ["lossy"]


def test_one_forward_in_float16_counts_more_than_the_first_in_float32() -> None:
    applier = outside("drop-scaler")
    step_outside(applier, (nn.Linear(2, 2), None), (nn.Linear(2, 2), torch.float16))
    kept = _decide(
        torch.amp.GradScaler("cpu"), {"seen": {(torch.float32, "cuda"): None, (torch.float16, "cuda"): None}}
    )
    assert isinstance(kept, NotApplicable)


def test_a_scaler_without_an_update_is_kept_and_that_is_said() -> None:
    applier = outside("drop-scaler")
    scaler = torch.amp.GradScaler("cpu")
    applier.scaler_built(scaler)
    model = applier.model_met(nn.Linear(2, 2))
    for _ in range(3):
        scaler.scale(model(torch.ones(2, 2)).sum()).backward()
    applier.finish()
    assert scaler.is_enabled()
    assert "made no update" in applier.records[0].detail
    assert b"hotloop" not in pickle.dumps(scaler)


def test_a_scaler_whose_dtype_cannot_be_seen_is_kept() -> None:
    class Own(nn.Linear):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.float16):
                return super().forward(x)

    applier = outside("drop-scaler")
    assert step_outside(applier, (nn.Linear(2, 2), None), (Own(2, 2), None)).is_enabled()


# -- the process ------------------------------------------------------------------------------------------------------


SETS_THREADS = """
import sys
import torch
from torch.utils.data import DataLoader

def set_threads(worker):
    torch.set_num_threads(5)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.get_num_threads()

if __name__ == "__main__":
    torch.set_num_threads(5)
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    print(torch.get_num_threads(), [int(one) for one in DataLoader(Data(), num_workers=1, worker_init_fn=set_threads)])
"""


@pytest.mark.parametrize(
    ("override", "printed", "status"), [("", "5 [5, 5, 5, 5]", "not applicable"), ("true", "2 [1, 1, 1, 1]", "applied")]
)
def test_a_number_of_threads_holds_against_later_calls_with_override_alone(
    tmp_path: Path, override: str, printed: str, status: str
) -> None:
    key = f"override = {override}" if override else ""
    (tmp_path / "train.py").write_text(SETS_THREADS)
    table = f'schema = "hotloop.strategy/1"\n[techniques.thread-count]\ntorch_threads = 2\n{key}\n'
    (tmp_path / "fast.toml").write_text(table)
    command = [sys.executable, "-m", "hotloop", "run", "--no-probe", "--strategy", "fast.toml"]
    done = subprocess.run(
        [*command, "--json", "out.json", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == printed
    told = json.loads((tmp_path / "out.json").read_text())["strategy"]
    last = [one for one in told if one["where"] is not None][-1]
    assert (last["status"], last["explicit"], last["where"]["line"]) == (status, "set_num_threads(5)", 17)


@pytest.mark.parametrize(
    ("technique", "settings", "before", "after"),
    [
        ("thread-count", {"torch_threads": 2}, {}, {"OMP_NUM_THREADS": "2"}),
        ("thread-count", {"torch_threads": 2}, {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "4"}),
        ("thread-count", {}, {}, {}),
        ("expandable-segments", {}, {}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        (
            "expandable-segments",
            {},
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"},
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"},
        ),
        (
            "expandable-segments",
            {},
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
        ),
    ],
)
def test_variables_are_added_and_never_replaced(technique: str, settings: Any, before: Any, after: Any) -> None:
    assert set_variables(strategy_of(technique, settings), before)[0] == after


def test_garbage_is_frozen_after_the_warm_up_and_the_script_collects_young_objects() -> None:
    collect = gc.collect
    counted: list[str] = []
    applied = apply("gc-freeze", {"warmup_steps": 2, "remove_explicit": True})
    gc.callbacks.append(lambda phase, info: counted.append(f"{phase} {info['generation']}"))
    try:
        applied.after_step()
        assert gc.get_freeze_count() == 0
        applied.after_step()
        assert gc.get_freeze_count() > 1_000
        counted.clear()
        gc.collect()
        assert counted == ["start 1", "stop 1"]
    finally:
        gc.callbacks.pop()
        applied.undo()
    assert gc.collect is collect
    assert gc.get_freeze_count() == 0
