"""pinned-memory: not applicable without an accelerator; which copies stop waiting."""

from typing import Any

import pytest
import torch

from hotloop.change.apply.techniques.pinned_memory import wait_for_no_copy

from .small import apply_one


class FakeTensor:
    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned

    def is_pinned(self) -> bool:
        return self.pinned


def test_without_an_accelerator_there_is_nothing_to_copy_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    applied, loader = pinned_loader(range(4))
    assert applied.loader is loader
    assert loader.pin_memory is False


@pytest.fixture
def _accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))


def pinned_loader(data: Any, **options: Any) -> Any:
    loader = torch.utils.data.DataLoader(data, batch_size=2, **options)
    return apply_one("pinned-memory", loader=loader), loader


@pytest.mark.usefixtures("_accelerator")
def test_workers_are_pinned_for_where_they_cannot_use_the_device() -> None:
    applied, loader = pinned_loader(torch.arange(4), num_workers=1, multiprocessing_context="fork")
    assert loader.pin_memory is True
    applied.undo()
    assert loader.pin_memory is False
    applied, loader = pinned_loader(torch.arange(4))
    assert "without workers" in applied.records[0].detail
    applied, loader = pinned_loader(torch.arange(4), num_workers=1, multiprocessing_context="spawn")
    assert loader.pin_memory is False


@pytest.mark.parametrize(
    ("args", "kwargs", "pinned", "added"),
    [
        (("cuda",), {}, True, True),
        ((torch.device("cuda", 0),), {}, True, True),
        ((), {"device": "cuda:1"}, True, True),
        ((0,), {}, True, True),
        ((), {}, True, True),
        (("cuda",), {}, False, False),
        (("cpu",), {}, True, False),
        ((torch.float16,), {}, True, False),
        (("cuda", torch.float16, False), {}, True, False),
        (("cuda",), {"non_blocking": False}, True, False),
        ((torch.ones(1),), {}, True, False),
    ],
)
def test_only_pinned_copies_to_a_device_stop_waiting(
    args: tuple[Any, ...], kwargs: dict[str, Any], pinned: bool, added: bool
) -> None:
    wait_for_no_copy(FakeTensor(pinned), args, kwargs)
    assert kwargs.get("non_blocking", False) is added
