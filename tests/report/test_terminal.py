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

from hotloop.core.findings import Basis, Saving, Severity, Skipped, Where
from hotloop.core.report import Health, Outcome, Report, ScorecardRow
from hotloop.report import render
from hotloop.report.document import Table
from hotloop.report.renderers.terminal import UNICODE_GLYPHS, Page, _draw_table
from hotloop.report.views import run as text

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


def test_verdict_is_first_and_the_next_command_last() -> None:
    lines = render("terminal", samples.input_bound_report(), width=200, color=False).splitlines()
    assert lines[0] == "input-bound: 46% of every step waits for the next batch"
    assert lines[1] == (
        "You lose 92.0 ms per step (46%). Fixing it should save 35–46% of the time per sample (simulated)."
    )
    assert lines[-1] == "Next: hotloop rule input-bound"


def test_colour_changes_no_word() -> None:
    import re

    plain = render("terminal", samples.straggler_report(), width=80, color=False)
    coloured = render("terminal", samples.straggler_report(), width=80, color=True)
    assert "\x1b[" not in plain
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_environment_does_not_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = render("terminal", samples.input_bound_report(), width=80, color=False)
    for name, value in {"COLUMNS": "30", "TERM": "dumb", "FORCE_COLOR": "1", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert render("terminal", samples.input_bound_report(), width=80, color=False) == expected


def test_training_that_was_not_seen_is_one_line_with_its_reason() -> None:
    report = replace(
        samples.no_training_report(),
        health=(Health(level="info", message="a"), Health(level="warning", message="python -I hides hotloop")),
    )
    text = render("terminal", report, width=80, color=False)
    assert text.count("\n") == 1
    assert text.endswith("optimizer step: python -I hides hotloop (exit code 3)\n")


def test_opportunities_could_win_and_faults_lose() -> None:
    healthy = render("terminal", samples.healthy_report(), width=80, color=False)
    assert "could save" in healthy
    assert "you lose" not in healthy
    assert "you lose" in render("terminal", samples.straggler_report(), width=80, color=False)


def test_unknown_is_never_zero() -> None:
    text = render("terminal", samples.healthy_report(), width=80, color=False)
    assert "share of the run unknown" in text
    assert "device utilisation  unknown" in text
    assert "deep window" not in text
    assert "MEMORY" not in text
    assert "first step after" not in text


def test_error_of_past_forecasts_stands_beside_new_ones_only_when_there_is_one() -> None:
    assert "median error of 12 past" in render("terminal", samples.input_bound_report(), width=120, color=False)
    assert "past forecasts" not in render("terminal", samples.straggler_report(), width=120, color=False)


def test_names_of_the_program_can_not_drive_the_terminal() -> None:
    text = render("terminal", samples.hostile_report(), width=80, color=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]" in text
    text.encode("utf-8")


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


def test_severity_without_a_saving_still_marks_the_verdict() -> None:
    report = samples.input_bound_report()
    growing = replace(report.findings[0], saving=None, severity_override=Severity.HIGH, cost_ns=None, cost_ratio=None)
    text = render("terminal", replace(report, findings=(growing,)), width=80, color=True)
    assert text.startswith("\x1b[1;31minput-bound")
    assert "loses" not in text


def test_many_ranks_are_cut_to_those_that_matter() -> None:
    report = samples.straggler_report()
    assert report.ranks[0].breakdown is not None
    ranks = tuple(samples.make_rank(i, report.ranks[0].breakdown, 300_000_000, 64) for i in range(64))
    named = replace(report.findings[0], ranks=(63,))
    text = render("terminal", replace(report, ranks=ranks, findings=(named,)), width=80, color=False)
    assert "48 ranks more in the JSON and HTML reports" in text
    assert any(line.split()[:1] == ["63"] and line.endswith("straggler") for line in text.splitlines())


def test_a_rank_that_recorded_no_end_is_named_with_the_outcome() -> None:
    report = samples.straggler_report()
    report = replace(
        report,
        outcome=Outcome(ended="exception", exit_code=1, signal=None, training_seen=True),
        ranks=(replace(report.ranks[0], ended="exception"), replace(report.ranks[1], ended=None)),
    )
    shown = render("terminal", report, width=300, color=False)
    assert "exit code 1; rank 1: recorded no end: killed, or crashed" in shown
    assert "\n   rank 1: recorded no end: killed, or crashed; its recording lost 3 rows\n" in shown
    running = replace(report, outcome=Outcome(ended="running", exit_code=None, signal=None, training_seen=True))
    assert "recorded no end" not in render("terminal", running, width=300, color=False)


def test_trace_report_without_outcome_and_steps_is_drawn() -> None:
    report = replace(
        samples.input_bound_report(), outcome=None, step=None, breakdown=None, memory=None, ranks=(), overhead=None
    )
    text = render("terminal", report, width=80, color=False)
    assert "WHERE THE TIME GOES" not in text
    assert "exit code" not in text


def test_two_trainings_are_both_named() -> None:
    report = replace(samples.input_bound_report(), runs=(samples.input_bound_report(), samples.healthy_report()))
    assert "2. healthy: no fault costs 5% or more of a step (120 steps)" in render(
        "terminal", report, width=80, color=False
    )


def test_equal_ends_of_a_forecast_are_one_number() -> None:
    report = samples.input_bound_report()
    saving = Saving(low_ratio=0.4, mid_ratio=0.4, high_ratio=0.4, basis=Basis.MEASURED)
    text = render(
        "terminal", replace(report, findings=(replace(report.findings[0], saving=saving),)), width=80, color=False
    )
    assert "fix saves  40% (measured)" in text


def test_memory_of_ranks_on_one_host_says_what_it_is_the_sum_of() -> None:
    apart = samples.straggler_report()
    together = replace(apart, ranks=tuple(replace(rank, host="node-a") for rank in apart.ranks))
    note = "all processes of one host together: the sum of their peaks"
    assert note in render("terminal", together, width=200, color=False)
    assert note not in render("terminal", apart, width=200, color=False)
    assert note in render("html", together)


def test_a_measure_that_guides_have_no_band_for_is_shown_without_one() -> None:
    row = ScorecardRow(name="exposed", measured_ratio=0.05, good="", bad="", verdict="unknown")
    text = render("terminal", replace(samples.healthy_report(), scorecard=(row,)), width=200, color=False)
    assert "   exposed     5.0%  no band\n" in text


def test_an_exchange_that_is_counted_in_backward_says_so() -> None:
    report = samples.straggler_report()
    seen = replace(report, findings=(replace(report.findings[0], phase="communication"),))
    assert text.describe_hidden_exchange(seen) is None
    hidden = replace(report, findings=(replace(report.findings[0], phase="backward"),))
    assert text.describe_hidden_exchange(hidden) == (
        "waiting for DDP's communication is counted in backward, where it happens; see straggler"
    )
    assert "is counted in backward" in render("terminal", hidden, width=100, color=False)


def test_rules_that_only_an_accelerator_could_break_are_counted_in_one_line() -> None:
    cpu = [Skipped(rule=f"rule-{i}", reason=f"the training ran on the CPU: no {i}") for i in range(6)]
    others = [Skipped(rule=f"other-{i}", reason=f"reason {i}") for i in range(text.SHOWN_REASONS + 2)]
    shown = text.describe_skipped([*cpu, *others])
    assert len(shown) == text.SHOWN_REASONS + 2
    assert ("6 rules about accelerators", "the training ran on the CPU") in shown
    assert shown[-1][0] == "2 rules for other reasons"


def test_what_the_steady_steps_leave_out_is_told_with_the_step() -> None:
    text = " ".join(render("terminal", samples.partly_judged_report(), width=100, color=False).split())
    assert (
        "left out: first 30 steps, 6.00 s, 67% of the run, most of it input wait; after the last step, 1.00 s, 11%"
        in text
    )
    assert "left out: first" not in render("terminal", samples.input_bound_report(), width=100, color=False)
