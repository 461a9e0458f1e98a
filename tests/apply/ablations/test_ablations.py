"""What each ablation takes away in a process, and what it refuses."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader

from hotloop.change.apply import ABLATIONS
from hotloop.change.apply.applier import ProcessContext, make_context
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Call, NotApplicable

LOADER = "torch.utils.data.dataloader:DataLoader._get_iterator"
PLATEAU = "torch.optim.lr_scheduler:ReduceLROnPlateau.step"
SAMPLES: Any = [torch.tensor([float(index)]) for index in range(20)]


def make_process() -> ProcessContext:
    return make_context(Strategy(), from_outside=True)


def begin_pass(ablation: str, loader: DataLoader[Any], process: ProcessContext) -> tuple[Any, Any]:
    """The effect on a pass that begins, and its iterator."""
    call = Call(name=LOADER, function=DataLoader._get_iterator, args=(loader,), kwargs={})
    return ABLATIONS[ablation].change_call(call, {}, process), call.function(*call.args)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_replayed_and_a_pass_keeps_its_length(workers: int) -> None:
    process, loader = make_process(), DataLoader(SAMPLES, batch_size=2, num_workers=workers)
    for _ in range(2):
        effect, batches = begin_pass("replay-batches", loader, process)
        assert [int(batch[0]) for batch in batches] == [0, 2, 4, 6, 8, 10, 12, 14, 0, 2]
    assert effect == Applied(text=effect.text, values={"count": 8, "dataset": "list"})


def test_replayed_batches_that_the_script_changes_are_refused() -> None:
    process, reported = make_process(), list[Any]()
    process.on_report = lambda technique, effect: reported.append(effect)
    for _ in range(2):
        for batch in begin_pass("replay-batches", DataLoader(SAMPLES, batch_size=10), process)[1]:
            batch.add_(1)
    assert {type(effect) for effect in reported} == {NotApplicable}


def test_validation_ends_after_one_batch_and_is_not_replayed() -> None:
    process, loader = make_process(), DataLoader(SAMPLES, batch_size=4)
    assert begin_pass("skip-validation", loader, process)[0] is None
    with torch.no_grad():
        passes = [list(begin_pass("skip-validation", loader, process)[1]) for _ in range(2)]
        assert begin_pass("replay-batches", loader, process)[0] is None
    assert [len(batches) for batches in passes] == [1, 1]


@pytest.mark.parametrize(
    ("ablation", "name", "args"),
    [("replay-batches", LOADER, (DataLoader(ChainDataset([])),)), ("skip-validation", PLATEAU, ())],
)
def test_what_needs_the_real_data_is_refused(ablation: str, name: str, args: tuple[Any, ...]) -> None:
    call = Call(name=name, function=print, args=args, kwargs={})
    assert isinstance(ABLATIONS[ablation].change_call(call, {}, make_process()), NotApplicable)


def test_a_checkpoint_is_saved_without_content() -> None:
    file = io.BytesIO()
    call = Call(name="torch.serialization:save", function=torch.save, args=(SAMPLES, file), kwargs={})
    ABLATIONS["skip-saves"].change_call(call, {}, make_process())
    call.function(*call.args, **call.kwargs)
    file.seek(0)
    assert torch.load(file) == {}


def test_an_optimizer_updates_nothing_and_calls_its_closure() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    ABLATIONS["skip-optimizer-step"].change_optimizer(optimizer, {}, make_process())
    weight.sum().backward()
    assert (optimizer.step(), optimizer.step(lambda: 3.0), weight.tolist()) == (None, 3.0, [1.0, 1.0])
