"""Work per step from recordings: whatever was read of it, and wherever."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.agent.replay.recording_writer import merge_rows
from hotloop.core.recording import FIELD, STEP_FIELDS
from hotloop.evidence.analyze.process import ProcessAnalysis, analyze_process
from hotloop.evidence.analyze.trainings import analyze_run

from .synthetic import Rows, recording


def rows_of(padded: list[int], read_every: list[int], share: float = 0.8) -> Rows:
    """One step per entry of ``padded``; tokens are read in the steps whose number is in ``read_every``."""
    rows = Rows()
    for i, size in enumerate(padded):
        tokens = round(size * share)
        read = {"tokens": tokens, "padding_tokens": size - tokens, "longest_tokens": size} if i in read_every else {}
        rows.step(samples=16, batches=1, micro_batches=1, padded_tokens=size, **read)
    return rows


def analyze(rows: Rows) -> ProcessAnalysis:
    found = analyze_process(recording(rows))
    assert found is not None
    return found


def test_tokens_follow_every_batch_though_only_early_ones_were_read() -> None:
    padded = [100 * (1 + i) for i in range(100)]
    found = analyze(rows_of(padded, list(range(20))))
    steady = padded[-found.rank.steady_count :]
    assert found.rank.tokens_per_step == pytest.approx(0.8 * sum(steady) / len(steady), rel=1e-3)


def test_parts_that_are_read_more_densely_do_not_count_for_more() -> None:
    rows = rows_of([1000] * 320, [])
    for i in [*range(160), *range(160, 320, 16)]:
        share = 0.5 if i < 160 else 1.0
        for name, value in (
            ("tokens", 1000 * share),
            ("padding_tokens", 1000 - 1000 * share),
            ("longest_tokens", 1000),
        ):
            rows.rows[i][FIELD[name]] = int(value)
    assert analyze(rows).rank.tokens_per_step == pytest.approx(750, rel=0.01)


def test_the_error_of_what_was_not_read_is_stated() -> None:
    draw = np.random.default_rng(0)
    rows, held = Rows(), []
    for i in range(800):
        tokens = int(draw.integers(400, 1000))
        held.append(tokens)
        read = {"tokens": tokens, "padding_tokens": 1000 - tokens, "longest_tokens": 1000} if i % 8 == 3 else {}
        rows.step(samples=16, batches=1, micro_batches=1, padded_tokens=1000, **read)
    found = analyze(rows)
    steady = held[-found.rank.steady_count :]
    noise = found.units.tokens_noise_ratio
    assert noise is not None
    assert 0.01 < noise < 0.04
    assert found.rank.tokens_per_step == pytest.approx(sum(steady) / len(steady), rel=3 * noise)


def test_a_run_whose_batches_were_all_read_has_no_such_error() -> None:
    assert analyze(rows_of([100] * 40, list(range(40)))).units.tokens_noise_ratio == 0.0


def test_work_that_rises_is_told_and_work_that_varies_is_not() -> None:
    rising = rows_of([100 + 10 * i for i in range(90)], list(range(90)))
    draw = np.random.default_rng(0)
    varying = rows_of([int(size) for size in draw.integers(100, 1000, 90)], list(range(90)))
    told = ["drifts" in " ".join(h.message for h in analyze_run([recording(r)])[0].health) for r in (rising, varying)]
    assert told == [True, False]


def test_a_block_keeps_the_tokens_of_its_rows_that_were_read() -> None:
    rows = rows_of([100, 200, 300], [1])
    block = merge_rows(merge_rows(rows.rows[0], rows.rows[1]), rows.rows[2])
    names = ("padded_tokens", "tokens", "padding_tokens", "longest_tokens")
    assert [block[FIELD[name]] for name in names] == [600, 160, 40, 200]
    assert len(block) == len(STEP_FIELDS)
