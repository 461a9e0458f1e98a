"""A benchmark's page: its plots by kind, its tables, and nothing that a page must not hold."""

from __future__ import annotations

import re

import pytest

from hotloop.core.benchmarks import BenchmarkResult, Row
from hotloop.show.report import render

TRAIN: tuple[Row, ...] = (
    {"part": "forward", "min_ns": 1000, "median_ns": 2000, "of_step_ratio": 0.5, "n": 3},
    {"part": "whole step", "min_ns": 3000, "median_ns": 4000, "of_step_ratio": 1.0, "n": 3},
)
LOADER: tuple[Row, ...] = (
    {"workers": 0, "prefetch": 0, "pinned": False, "batches_per_s": 10.0, "present": True},
    {"workers": 2, "prefetch": 4, "pinned": False, "batches_per_s": None, "present": False},
)
SCALING: tuple[Row, ...] = (
    {"ranks": 1, "step_min_ns": 10, "speedup": 1.0},
    {"ranks": 4, "step_min_ns": 20, "speedup": 2.0},
)


def result(kind: str, *tables: tuple[Row, ...], text: str = "train.py:make") -> BenchmarkResult:
    return BenchmarkResult(
        tool_version="1", benchmark=kind, subject=text, tables=tables, facts={"device": text}, notes=(text,)
    )


def draw_plots(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, flags=re.S)


@pytest.mark.parametrize(
    ("kind", "rows", "shown"),
    [
        ("train", TRAIN, ["whole step", "4.00 µs"]),
        ("loader", LOADER, ["0 workers, prefetch 0", "unknown"]),
        ("scaling", SCALING, ["4 ranks"]),
    ],
)
def test_every_kind_is_drawn(kind: str, rows: tuple[Row, ...], shown: list[str]) -> None:
    page = render("html", result(kind, rows))
    plots = draw_plots(page)
    assert plots
    assert all(text in "".join(plots) for text in shown)
    assert page.count("<tr>") == 1 + len(rows)
