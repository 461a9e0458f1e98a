"""What was kept of a gradient follows its parameter through other buckets and checkpoints."""

from dataclasses import dataclass

import pytest
import torch

from hotloop.change.apply.compression.hooks import Residuals, pieces_of, state_by_name


@dataclass
class Bucket:
    number: int
    held: list[torch.Tensor]

    def index(self) -> int:
        return self.number

    def buffer(self) -> torch.Tensor:
        return torch.zeros(sum(one.numel() for one in self.held))

    def parameters(self) -> list[torch.Tensor]:
        return self.held

    def is_last(self) -> bool:
        return True


@pytest.fixture
def parameters() -> list[torch.Tensor]:
    return [torch.zeros(2), torch.zeros(3), torch.zeros(4)]


def test_it_moves_with_its_parameter_into_other_buckets(parameters: list[torch.Tensor]) -> None:
    one, two, three = parameters
    kept = Residuals()
    kept.of(Bucket(0, [one, two])).copy_(torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0]))
    kept.of(Bucket(1, [three])).fill_(3.0)
    assert kept.of(Bucket(0, [three, one])).tolist() == [3.0] * 4 + [1.0] * 2
    assert kept.of(Bucket(1, [two])).tolist() == [2.0] * 3


def test_a_checkpoint_may_be_loaded_under_other_buckets(parameters: list[torch.Tensor]) -> None:
    names = {id(one): f"layer.{index}" for index, one in enumerate(parameters)}
    kept = Residuals()
    kept.of(Bucket(0, parameters)).copy_(torch.arange(9.0))
    state = state_by_name(kept.by_parameter(), names)
    assert {name: piece.tolist() for name, piece in state.items()} == {
        "layer.0": [0.0, 1.0],
        "layer.1": [2.0, 3.0, 4.0],
        "layer.2": [5.0, 6.0, 7.0, 8.0],
    }
    again = Residuals()
    again.load(pieces_of(state, names))
    assert again.of(Bucket(0, parameters[1:])).tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert state_by_name(again.by_parameter(), names)["layer.0"].tolist() == [0.0, 1.0]
