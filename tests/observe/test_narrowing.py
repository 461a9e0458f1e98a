"""When the patch of nn.Module is narrowed and widened again: rarely, and ever more so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from hotloop.attach import narrowing
from hotloop.attach.narrowing import WATCH_SHARE, ModulePatch
from hotloop.observe import wrappers
from hotloop.observe.session import LEARNING_ROWS, MANY_NESTED_CALLS, WATCH_ROWS, Session


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModulePatch]:
    """A patch on nn.Module for the time of one test, of a session whose model has many modules."""
    session = Session({"run": ""})
    monkeypatch.setattr(narrowing, "_dynamo_compiled", lambda: False)
    monkeypatch.setattr(nn.Module, "__call__", wrappers.wrap_module_call(session)(nn.Module.__dict__["__call__"]))
    patch = session.module_patch = ModulePatch(session)
    session.nested_calls = 2 * MANY_NESTED_CALLS * LEARNING_ROWS
    session.roots.add(nn.Sequential)
    yield patch
    patch.widen()


def watched_rows(patch: ModulePatch, rows: int) -> list[int]:
    """The rows at whose end the wide patch was put back, when every row's end is looked at."""
    found = []
    for row in range(1, rows + 1):
        before = patch.widened_count
        patch.after_row(row)
        if patch.widened_count > before:
            assert patch.is_passing
            found.append(row)
    return found


def test_nested_modules_are_watched_again_in_ever_fewer_rows(patch: ModulePatch) -> None:
    found = watched_rows(patch, 100_000)
    assert found[:5] == [64, 128, 192, 256, 320]
    assert all(row % WATCH_ROWS == 0 for row in found)
    assert all(later - row <= row // WATCH_SHARE + WATCH_ROWS for row, later in itertools.pairwise(found))
    assert len(found) < 80
    assert not patch.is_wide


def test_a_narrowed_patch_sees_the_outermost_call_alone_and_answers_the_same(patch: ModulePatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    x = torch.ones(1, 2)
    wide = model(x)
    watched_rows(patch, LEARNING_ROWS)
    assert not patch.is_wide
    assert "__call__" in vars(nn.Sequential)
    assert "__call__" not in vars(nn.Linear)
    assert torch.equal(model(x), wide)


def test_under_compilation_it_stays_wide(patch: ModulePatch) -> None:
    watched_rows(patch, WATCH_ROWS - 1)
    patch._session.compile_used = True
    for row in (WATCH_ROWS, WATCH_ROWS + 1, WATCH_ROWS + 2):
        patch.after_row(row)
    assert patch.is_wide
    assert not patch.is_passing
