"""What is told of a DataLoader: places in the user's own code only."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hotloop.observe.facts import loader_facts, model_facts, optimizer_facts


class Reviews(Dataset[Any]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(index)


def join(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(rows)


def test_the_users_data_set_and_collate_function_are_places() -> None:
    told = loader_facts(DataLoader(Reviews(), collate_fn=join, sampler=[1, 2]), 1, None)
    assert told["fetch_where"][2].endswith("__getitem__")
    assert told["collate_where"][2] == "join"


def test_lines_of_torch_are_no_place_to_change_anything() -> None:
    told = loader_facts(DataLoader(TensorDataset(torch.zeros(4)), batch_size=None), 1, None)
    assert (told["fetch_where"], told["collate_where"]) == (None, None)
    assert told["collate"] == "default_convert"


def test_a_model_whose_weights_lie_in_parts_is_told_from_a_plain_one() -> None:
    class FSDPModule:
        """As FSDP2 does it: the class of a part is exchanged for one that also derives from this."""

    class Part(FSDPModule, torch.nn.Linear):
        pass

    assert model_facts(torch.nn.Sequential(Part(2, 2)), 1)["sharded"] is True
    assert model_facts(torch.nn.Sequential(torch.nn.Linear(2, 2)), 2)["sharded"] is False


def test_a_model_with_recurrent_layers_is_told_from_one_without() -> None:
    assert model_facts(torch.nn.Sequential(torch.nn.GRU(2, 2)), 1)["recurrent"] is True
    assert model_facts(torch.nn.Sequential(torch.nn.GRUCell(2, 2)), 2)["recurrent"] is False


def test_an_optimizer_of_torchs_name_is_told_from_torchs_own() -> None:
    class AdamW(torch.optim.Optimizer):
        """As in many repositories: written by hand."""

    parameters = [torch.nn.Parameter(torch.zeros(2))]
    theirs = torch.optim.AdamW(parameters)
    assert optimizer_facts(theirs, 0, None, 1)["own_class"] is False
    assert optimizer_facts(type("AdamW", (torch.optim.AdamW,), {})(parameters), 0, None, 1)["own_class"] is False
    assert optimizer_facts(AdamW(parameters, {}), 0, None, 1)["own_class"] is True
    assert optimizer_facts(type("Lion", (AdamW,), {})(parameters, {}), 0, None, 1)["own_class"] is True
