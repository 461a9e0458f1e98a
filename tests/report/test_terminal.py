"""The terminal report, compared with what a person should read.

The expected texts are in ``tests/report/golden``. After a change that is meant, write them anew with

    HOTLOOP_UPDATE_GOLDEN=1 pytest tests/report/test_terminal.py

and review the difference like code.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import report_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hotloop.core.findings import Where
from hotloop.core.report import Report
from hotloop.show.report import render
from hotloop.show.report.document import Table
from hotloop.show.report.renderers.terminal import UNICODE_GLYPHS, Page, _draw_table

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, Callable[[], Report]] = {
    "input_bound": samples.input_bound_report,
    "straggler": samples.straggler_report,
    "healthy": samples.healthy_report,
    "no_training": samples.no_training_report,
}
MANUALS = {"input-bound": samples.MANUAL}


def compare_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HOTLOOP_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_terminal_text_is_the_expected_one(name: str) -> None:
    compare_golden(name, render("terminal", CASES[name](), width=80, color=False, manuals=MANUALS))


def test_ascii_text_is_the_expected_one() -> None:
    text = render("terminal", samples.input_bound_report(), width=80, color=False, unicode=False)
    assert text.isascii()
    compare_golden("input_bound_ascii", text)


@pytest.mark.parametrize("width", [60, 80, 132])
@pytest.mark.parametrize("name", ["input_bound", "straggler", "healthy"])
def test_lines_fit_the_width(name: str, width: int) -> None:
    report = replace(CASES[name](), scorecard=())
    lines = render("terminal", report, width=width, color=False).splitlines()
    assert [line for line in lines if len(line) > width and "/home/" not in line] == []


def test_a_place_is_relative_to_the_readers_folder_and_no_line_is_wider_than_the_terminal() -> None:
    report = samples.input_bound_report()
    deep = Where(file="/tmp/cache/" + "deep/" * 20 + "generated.py", line=58, function="Runner." + "call" * 20)
    own = Where(file="/home/user/project/train.py", line=7, function="step")
    report = replace(report, findings=(replace(report.findings[0], where=(own, deep)),), lines=())
    text = render("terminal", report, width=80, color=False, folder="/home/user/project")
    assert "where      train.py:7 in step\n" in text
    assert "generated.py:58 in Runner." in text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "/home/user/project/train.py:7" in render("terminal", report, width=80, color=False)


def test_a_table_too_wide_shortens_names_and_says_which_columns_it_lacks() -> None:
    header = ["name", *[f"column {i}" for i in range(8)]]
    row = ["a_kernel_of_a_very_long_name_that_goes_on_and_on", *["1,000,000 ms"] * 8]
    page = Page(80, UNICODE_GLYPHS, lambda body, columns: body.wrap(Console(width=columns), columns))
    _draw_table(page, Table(header=tuple(header), rows=(tuple(row),)))
    lines = [line.plain for line in page.lines]
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("   a_kernel_…_that_goes_on_and_on  1,000,000 ms")
    hidden = " ".join(" ".join(lines[2:]).split())
    assert hidden == (
        "more columns in a wider terminal and on the HTML page: column 3, column 4, column 5, column 6, column 7"
    )


def test_unknown_is_never_zero() -> None:
    text = render("terminal", samples.healthy_report(), width=80, color=False)
    assert "share of the run unknown" in text
    assert "device utilisation  unknown" in text
    assert "deep window" not in text
    assert "MEMORY" not in text
    assert "first step after" not in text


@given(st.text(st.characters(exclude_categories=()), max_size=60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_string_puts_a_control_character_on_the_terminal(name: str, unicode: bool) -> None:
    report = samples.input_bound_report()
    finding = replace(
        report.findings[0], title=name, evidence={name: name}, where=(Where(file=name, line=1, function=name),)
    )
    report = replace(report, verdict=name, findings=(finding,), command=(name,), next_command=name)
    text = render("terminal", report, width=80, color=False, unicode=unicode)
    assert [c for c in text.replace("\n", "") if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}] == []
    assert unicode or text.isascii()
