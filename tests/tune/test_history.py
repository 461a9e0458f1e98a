"""Forecasts beside what was measured, over tunings."""

from __future__ import annotations

import json
from pathlib import Path

from hotloop.change.tune.history import read_history


def test_of_a_long_history_the_newest_lines_count(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    old, new = (json.dumps({"error_ratio": error, "technique": "x" * 400}) + "\n" for error in (0.5, 0.1))
    history.write_text(old * 12_000 + new * 1_000)
    assert history.stat().st_size > 4 << 20
    assert read_history(history) == {"n": 1_000, "median_abs_error": 0.1}


def test_without_a_history_nothing_is_known(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none.jsonl") == {"n": 0, "median_abs_error": None}
