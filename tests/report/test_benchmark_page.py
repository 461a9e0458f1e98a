"""A benchmark's page: its plots by kind, its tables, and nothing that a page must not hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from hotloop.core.benchmarks import BenchmarkResult, Row
from hotloop.report import render

EVIL = "</title><script>alert(1)</script>\"'&\x1b"
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


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize(
    ("kind", "rows", "shown"),
    [
        ("train", TRAIN, ["whole step", "4.00 µs"]),
        ("loader", LOADER, ["0 workers, prefetch 0", "unknown"]),
        ("scaling", SCALING, ["ideal", "4 ranks"]),
    ],
)
def test_every_kind_is_drawn(kind: str, rows: tuple[Row, ...], shown: list[str]) -> None:
    page = render("html", result(kind, rows))
    plots = draw_plots(page)
    assert plots
    assert all(text in "".join(plots) for text in shown)
    assert page.count("<tr>") == 1 + len(rows)


def test_hostile_names_stay_text_and_the_policy_allows_what_the_page_holds() -> None:
    rows = tuple({**row, "part": EVIL} for row in TRAIN)
    page = render("html", result("train", rows, text=EVIL))
    tags = Tags(page).found
    assert {tag for tag, _ in tags} & {"img", "link", "iframe"} == set()
    assert [tag for tag, _ in tags].count("script") == 2
    assert [attributes for _, attributes in tags if "style" in attributes] == []
    assert "\x1b" not in page
    policy = next(a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert re.match(r"default-src 'none'; script-src 'sha256-[^']+'; style-src 'sha256-[^']+'; ", str(policy))
