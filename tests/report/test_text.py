from __future__ import annotations

import doctest

import pytest

import hotloop.show.report.findings as findings
import hotloop.show.report.judged
import hotloop.show.report.manual
import hotloop.show.report.renderers.markdown
import hotloop.show.report.views.run


@pytest.mark.parametrize(
    "module",
    [
        hotloop.show.report.text,
        findings,
        hotloop.show.report.judged,
        hotloop.show.report.manual,
        hotloop.show.report.renderers.markdown,
        hotloop.show.report.views.run,
    ],
)
def test_examples_in_the_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


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
