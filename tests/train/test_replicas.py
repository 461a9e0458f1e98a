"""A Trainer with local-updates on two ranks: what it validates, keeps and leaves, and that it goes on bit for bit."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.train.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from hotloop.train.replicas import Replicas

sys.path.insert(0, str(Path(__file__).parent))
from small import Blocks, make_loader
from test_trainer import run_phases

LOCAL = "technique=local-updates"


@pytest.mark.parametrize(("outer", "send", "warm_up"), [("average", "float32", 10), ("nesterov", "bf16", 5)])
def test_killed_between_rounds_it_goes_on_bit_for_bit(tmp_path: Path, outer: str, send: str, warm_up: int) -> None:
    """Rounds follow steps 4, 8, 12, after the warm-up; checkpoints steps 3, 6, 9, before its end or after it."""
    options = (LOCAL, f"outer={outer}", f"send={send}", f"warm_up_steps={warm_up}")
    whole, _, resumed = run_phases(
        tmp_path,
        [
            [2, "whole", "whole", *options, "max_steps=14"],
            [2, "cut", "a", *options, "kill_at=11"],
            [2, "cut", "b", *options, "max_steps=14"],
        ],
    )
    for rank in (0, 1):
        steps = resumed[rank]["losses"]
        assert max(map(int, steps)) == 14
        assert min(map(int, steps)) in (7, 10)
        assert steps == {step: whole[rank]["losses"][step] for step in steps}
        assert resumed[rank]["weights"] == whole[rank]["weights"]
    assert whole[0]["weights"] == whole[1]["weights"], "the end of fit, two steps after a round, has the mean"
    model = Blocks()
    kept = load_checkpoint(tmp_path / "whole" / "step-00000014", model=model)
    assert [one.flatten().tolist() for one in model.parameters()] == whole[0]["weights"]
    assert kept.state["has_replicas"]


def test_a_validation_has_the_mean_weights_of_all_ranks(tmp_path: Path) -> None:
    """Two steps after a round, it is the loss of the checkpoint's model, which is the mean."""
    (one,) = run_phases(tmp_path, [[2, "kept", "a", LOCAL, "count=16"]])
    model = Blocks()
    load_checkpoint(tmp_path / "kept" / "step-00000006", model=model)
    model.eval()
    loss = 0.0
    with torch.no_grad():
        for _, x, y in make_loader(9, noise=0.0):
            loss += float(torch.nn.functional.mse_loss(model(x).squeeze(1), y)) * len(y) / 9
    for rank in (0, 1):
        assert one[rank]["validations"]["6"] == pytest.approx(loss, rel=1e-5)


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(path=tmp_path, step=7, world_size=2, state={"has_replicas": True}, private=None)
    rounds: Any = object()
    with pytest.raises(CheckpointError, match=r"weights of 2 ranks that train on their own .* not on 3"):
        Replicas(rounds, None, None).restore(checkpoint, 3)
