"""Two gloo ranks: shared-out optimizer state, sharded models and micro-batches train as the plain ones do."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.change.apply.techniques.sharding import find_blocks
from hotloop.train.accumulate import micro_batches
from tests.apply.ranks import run_ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(Path(__file__).with_name("sharding_ranks.py"), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", ["adamw", "fused", "momentum"])
def test_each_rank_holds_a_part_of_the_state_and_the_training_is_the_same(found: dict[str, Any], scenario: str) -> None:
    one = found[scenario]
    assert one["records"][0].startswith("applied")
    assert one["bytes"] == one["whole_bytes"]
    assert 0 < one["own_bytes"] < 0.8 * one["whole_bytes"]
    assert one["gap"] < 1e-6
    assert one["state_gap"] < 1e-6
    assert one["ranks_agree"]
    assert one["refused"]  # no half of a state is ever saved
    assert one["lr"]  # a schedule over the shared-out optimizer acts, and is in what it saves


def test_a_sharded_model_with_micro_batches(found: dict[str, Any]) -> None:
    one = found["fsdp"]
    assert one["records"] == ["applied: 4 blocks and the model sharded over 2 ranks"]
    assert one["bytes"] / one["whole_bytes"] == pytest.approx(0.5, rel=0.01)
    assert one["gap"] < 1e-5


def test_a_batch_is_split_into_near_equal_parts() -> None:
    batch = {"x": torch.arange(7), "names": list("abcdefg"), "scale": torch.tensor(2.0)}
    parts = list(micro_batches(torch.nn.Identity(), batch, 3))
    assert [part.batch["x"].tolist() for part in parts] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [part.batch["names"] for part in parts] == [["a", "b", "c"], ["d", "e"], ["f", "g"]]
    assert sum(part.weight for part in parts) == pytest.approx(1)
    assert [part.is_last for part in parts] == [False, False, True]


def test_the_members_of_a_sequential_that_is_the_model_are_sharded_one_by_one() -> None:
    def part() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    model = torch.nn.Sequential(part(), part(), torch.nn.Linear(8, 2))
    assert find_blocks(model) == list(model)
    assert find_blocks(torch.nn.ModuleDict({"body": model})) == list(model)
    assert find_blocks(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())) == []
