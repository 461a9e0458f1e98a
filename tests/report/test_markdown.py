"""Markdown for pull requests: what is open, what is folded, and that no name makes markup, a link or a mention."""

from __future__ import annotations

import re
from dataclasses import replace

import report_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.findings import Where
from hotloop.show.report import render

MANUALS = {"input-bound": samples.MANUAL}


def test_verdict_and_findings_are_open_and_the_rest_is_folded() -> None:
    text = render("markdown", samples.input_bound_report(), manuals=MANUALS)
    lines = text.splitlines()
    assert lines[0] == "## input-bound: 46% of every step waits for the next batch"
    assert "You lose 92.0 ms per step (46%)." in lines[2]
    assert "| # | severity | finding | costs | a fix saves | where |" in lines
    row = next(line for line in lines if line.startswith("| 1 |"))
    assert "High: problem" in row
    assert "35–46%, most likely 42% (simulated)" in row
    opened = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
    assert "forward" not in opened
    assert "num\\_workers" not in opened
    assert text.count("<details>") == text.count("</details>") > 5
    assert "Read the data in `num_workers` processes." in text
    assert lines[-1] == "Next: `hotloop rule input-bound`"


HOSTILE = "@team #12 GH-1 <img src=x> [a](http://b.c) `x` | *b* _c_ ~d~ www.e.fr </details> \x1b[31m\u202e"


def test_names_of_the_program_make_no_markup_and_notify_nobody() -> None:
    report = samples.input_bound_report()
    where = (Where(file=HOSTILE, line=1, function=HOSTILE),)
    finding = replace(report.findings[0], title=HOSTILE, where=where, evidence={HOSTILE: HOSTILE})
    text = render("markdown", replace(report, verdict=HOSTILE, command=(HOSTILE,), findings=(finding,)))
    assert not {"\x1b", "\u202e"} & set(text)
    for summary in re.findall(r"<summary>(.*)</summary>", text):  # HTML, which GitHub reads as it stands
        assert re.search(r"[@#]\w|<(?!!-- -->)", summary) is None
    text = re.sub(r"<summary>.*</summary>", "", text)
    prose = re.sub(r"(?<!`)(`+) ?.*?[^`]\1(?!`)", "", re.sub(r"\\[^|]", "", text))
    assert re.search(r"[@#]\w|<img|(?<!\\)\]\(|https?://|www\.", prose) is None
    assert prose.count("</details>") == text.count("<details>")
    rows = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows[:2]}) == 1


@given(st.text(st.characters(exclude_categories=()), max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_name_ends_its_line_or_its_cell(name: str) -> None:
    report = samples.input_bound_report()
    where = (Where(file=name, line=1, function=name),)
    plain = render("markdown", report).splitlines()
    finding = replace(report.findings[0], title=name or "x", where=where)
    lines = render("markdown", replace(report, findings=(finding, *report.findings[1:]))).splitlines()
    assert len(lines) == len(plain)
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("| ")]
    assert bars == [len(re.findall(r"(?<!\\)\|", line)) for line in plain if line.startswith("| ")]
