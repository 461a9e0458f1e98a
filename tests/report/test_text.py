from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from report_samples import input_bound_report

import hotloop.report.findings as findings
import hotloop.report.judged
import hotloop.report.manual
import hotloop.report.renderers.markdown
import hotloop.report.text as text
import hotloop.report.views.run
from hotloop.core.findings import Severity
from hotloop.report.manual import manual_to_html


@pytest.mark.parametrize(
    "module",
    [
        hotloop.report.text,
        findings,
        hotloop.report.judged,
        hotloop.report.manual,
        hotloop.report.renderers.markdown,
        hotloop.report.views.run,
    ],
)
def test_examples_in_the_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_durations_never_jump_over_a_unit() -> None:
    assert text.format_duration(999_499) == "999 µs"
    assert text.format_duration(999_500) == "1.00 ms"
    assert text.format_duration(999_960_000) == "1.00 s"
    assert text.format_duration(119_990_000_000) == "120 s"
    assert text.format_duration(-5_000_000) == "-5.00 ms"


def test_something_never_prints_as_nothing() -> None:
    assert text.format_percent(1e-9) == "<0.1%"
    assert text.format_share(1e-9) == "<0.1%"
    assert text.format_percent(0.9996) == "100%"
    assert text.format_bytes(-2048) == "-2.00 KiB"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("wait_ns", 1_500_000, ("wait", "1.50 ms")),
        ("peak_bytes", 2**20, ("peak", "1.00 MiB")),
        ("growth_bytes_per_step", 1024, ("memory growth", "1.00 KiB per step")),
        ("samples_per_s", 81.25, ("samples", "81.2/s")),
        ("graph_breaks_count", 12, ("graph breaks", "12")),
        ("tf32", False, ("tf32", "no")),
        ("numels", [1, 2, 3, 4, 5, 6], ("numels", "1, 2, 3, 4 +2 more")),
        ("per_rank_ns", {"0": 1_000_000}, ("per rank", "0: 1.00 ms")),
        ("bytes", 10, ("bytes", "10 B")),
        ("ratio", 0.5, ("ratio", "50%")),
        ("reasons", [None, "a\nb"], ("reasons", "unknown, a b")),
        ("missing", None, None),
    ],
)
def test_evidence_is_written_in_its_unit(name: str, value: findings.Value, expected: tuple[str, str] | None) -> None:
    assert findings.format_evidence(name, value) == expected


def test_clean_keeps_letters_of_every_script() -> None:
    assert text.clean("données/训练.py") == "données/训练.py"
    assert text.clean("a\u2028b\u202ec\udcffd\x00e\x9bf") == "a b c d e f"


def test_manuals_can_hold_nothing_but_text() -> None:
    html = manual_to_html(
        "## <b>Head</b>\n<script>alert(1)</script> `a<b` **strong**\n\n- one `x`\n- two\n  more\n1. first\n\n"
        "```python\nfor b in loader:\n    pass  # <- \x1b\n```\nafter"
    )
    assert html == (
        "<h4>&lt;b&gt;Head&lt;/b&gt;</h4>\n"
        "<p>&lt;script&gt;alert(1)&lt;/script&gt; <code>a&lt;b</code> <strong>strong</strong></p>\n"
        "<ul><li>one <code>x</code></li><li>two more</li><li>first</li></ul>\n"
        "<pre>for b in loader:\n    pass  # &lt;-</pre>\n"
        "<p>after</p>"
    )


def test_advice_is_the_first_sentence_of_what_to_do() -> None:
    assert (
        findings.first_advice("## What to do\n\nUse `fused=True` in v2.1 of it. More.")
        == "Use fused=True in v2.1 of it."
    )
    assert findings.first_advice("## What it does\nNothing.") is None
    assert findings.first_advice("## What to do\n\n## When it is wrong\nNever.") is None


def test_the_stake_of_a_finding_that_no_verdict_names_says_whose_it_is() -> None:
    serious = input_bound_report().findings[0]
    assert serious.saving is not None
    lesser = replace(serious, saving=replace(serious.saving, low_ratio=0.02))
    assert (findings.describe_stake([serious]) or "").startswith(
        "You lose 92.0 ms per step (46%). Fixing it should save "
    )
    assert "Fixing input-bound should save " in (findings.describe_stake([lesser]) or "")


def test_a_finding_about_the_run_says_what_its_cost_is_of_and_has_no_stake() -> None:
    serious = input_bound_report().findings[0]
    once = replace(serious, base="run", saving=None, severity_override=Severity.MEDIUM)
    assert findings.cost_base(once) == ("in this run, once", "of the run")
    assert findings.cost_base(serious) == ("per step", "of the time per sample")
    assert findings.describe_stake([once, serious]) is None
