"""What is told of a DataLoader: places in the user's own code only."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hotloop.agent.observe.objects import (
    ModuleTree,
    describe_loader,
    describe_model,
    describe_optimizer,
    held_bytes,
    look_at_module,
)
from hotloop.core.events import LEARNS


def describe(model: torch.nn.Module) -> dict[str, Any]:
    return describe_model(model, ModuleTree(model))


class Reviews(Dataset[Any]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(index)


def join(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(rows)


def test_the_users_data_set_and_collate_function_are_places() -> None:
    told = describe_loader(DataLoader(Reviews(), collate_fn=join, sampler=[1, 2]), None)
    assert told["fetch_where"][2].endswith("__getitem__")
    assert told["collate_where"][2] == "join"


def test_lines_of_torch_are_no_place_to_change_anything() -> None:
    told = describe_loader(DataLoader(TensorDataset(torch.zeros(4)), batch_size=None), None)
    assert (told["fetch_where"], told["collate_where"]) == (None, None)
    assert told["collate"] == "default_convert"


def test_a_model_whose_weights_lie_in_parts_is_told_from_a_plain_one() -> None:
    class FSDPModule:
        """As FSDP2 does it: the class of a part is exchanged for one that also derives from this."""

        __module__ = "torch.distributed.fsdp"

    class Part(FSDPModule, torch.nn.Linear):
        pass

    assert describe(torch.nn.Sequential(Part(2, 2)))["sharded"] is True
    assert describe(torch.nn.Sequential(torch.nn.Linear(2, 2)))["sharded"] is False


def test_a_model_with_recurrent_layers_is_told_from_one_without() -> None:
    assert describe(torch.nn.Sequential(torch.nn.GRU(2, 2)))["recurrent"] is True
    assert describe(torch.nn.Sequential(torch.nn.GRUCell(2, 2)))["recurrent"] is False


def test_an_optimizer_of_torchs_name_is_told_from_torchs_own() -> None:
    class AdamW(torch.optim.Optimizer):
        """As in many repositories: written by hand."""

    parameters = [torch.nn.Parameter(torch.zeros(2))]
    theirs = torch.optim.AdamW(parameters)
    assert describe_optimizer(theirs, None)["own_class"] is False
    assert describe_optimizer(type("AdamW", (torch.optim.AdamW,), {})(parameters), None)["own_class"] is False
    assert describe_optimizer(AdamW(parameters, {}), None)["own_class"] is True
    assert describe_optimizer(type("Lion", (AdamW,), {})(parameters, {}), None)["own_class"] is True


class Trap:
    """Every attribute that is asked for is a call of a person's code."""

    asked: ClassVar[list[str]] = []

    def __getattribute__(self, name: str) -> Any:
        Trap.asked.append(name)
        raise RuntimeError(name)

    def __len__(self) -> int:
        Trap.asked.append("len")
        return 3


def test_nothing_of_a_persons_objects_is_called() -> None:
    class Net(torch.nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            raise NotImplementedError

    loader = DataLoader(TensorDataset(torch.zeros(4)), batch_size=2)
    loader.__dict__["dataset"] = loader.__dict__["sampler"] = loader.__dict__["collate_fn"] = Trap()
    assert describe_loader(loader, None)["length"] is None
    assert describe(Net(2, 2))["parameters"] == 6
    flags, _ = look_at_module(Net(2, 2))
    assert flags & LEARNS
    assert Trap.asked == []


def test_lengths_are_told_of_plain_sources_alone() -> None:
    assert describe_loader(DataLoader(TensorDataset(torch.zeros(9)), batch_size=2), None)["length"] == 5
    assert describe_loader(DataLoader(range(9), batch_size=2, drop_last=True), None)["length"] == 4
    assert describe_loader(DataLoader(Reviews(), batch_size=2, sampler=[1, 2, 3]), None)["length"] is None


def test_what_an_optimizer_holds_is_counted() -> None:
    weight = torch.nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    held = held_bytes(optimizer)
    assert (held["parameter_bytes"], held["gradient_bytes"]) == (40, 40)
    assert held["optimizer_state_bytes"] == 2 * 40 + 4  # two averages, and the count of steps
