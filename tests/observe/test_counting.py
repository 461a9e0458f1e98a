"""How often the tokens of a batch are read."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from hotloop.observe import batches
from hotloop.observe.counting import FIRST_ROWS, Counting
from hotloop.observe.recorder import Recorder

ROW_NS = 1_000_000
ROWS = 4096


def counted_rows(batch: Any, rows: int = ROWS) -> list[int]:
    """The rows, one a millisecond, in which the tokens of that batch are looked for."""
    recorder = Recorder()
    counting = Counting(recorder)
    found = []
    for row in range(rows):
        recorder.rows, recorder.last_ns = row, (row + 1) * ROW_NS
        counting.count_batch(None, batch)
        if counting.counted_row == row:
            found.append(row)
    return found


def test_where_no_batch_holds_tokens_they_are_looked_for_ever_less_often() -> None:
    found = counted_rows(torch.zeros(4, 2))
    assert found[:FIRST_ROWS] == [*range(FIRST_ROWS)]
    assert len([row for row in found if row < 128]) >= FIRST_ROWS + 4  # a later loader may have some
    assert 20 <= len([row for row in found if row >= 512]) <= 29  # one in 16 would be 224


def test_tokens_that_are_dear_to_read_are_read_rarely_and_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    spent_ns = 0
    count_tokens = batches.count_tokens

    def count_for_long(*args: Any, **kwargs: Any) -> Any:
        nonlocal spent_ns
        spent_ns += 5 * ROW_NS
        return count_tokens(*args, **kwargs)

    monkeypatch.setattr(batches, "count_tokens", count_for_long)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: spent_ns)
    found = counted_rows({"input_ids": torch.ones(4, 8, dtype=torch.int64), "attention_mask": torch.ones(4, 8)})
    thirds = [len([row for row in found if k * ROWS <= 3 * row < (k + 1) * ROWS]) for k in range(3)]
    assert min(thirds[1:]) >= 10
    assert max(thirds[1:]) <= 11  # one in 16 would be 85
