"""The verdicts of benchmarks/compression_quality.py: the limit, and what stays open."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import compression_quality


def result(**losses: list[float]) -> dict[str, Any]:
    rows = [
        {"method": method, "seed": seed, "last_loss": loss}
        for method, several in losses.items()
        for seed, loss in enumerate(several, start=1)
    ]
    return {"rows": rows, "seeds_count": 3, "allowed_ratio": 0.01}


def test_the_limit_is_one_percent_or_the_spread_of_plain_s_seeds() -> None:
    assert compression_quality.allowed_loss(result(plain=[2.0, 2.001, 1.999])) == pytest.approx(0.02)
    assert compression_quality.allowed_loss(result(plain=[2.0, 2.03, 1.97])) == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([2.01, 2.01, 2.01], "pass"),
        ([1.5, 1.5, 1.5], "pass"),
        ([2.03, 2.03, 2.03], "**worse**"),
        ([2.0, 2.0], "open: 2 of 3 seeds"),
    ],
)
def test_a_method_passes_only_with_all_seeds_and_within_the_limit(losses: list[float], verdict: str) -> None:
    found = result(plain=[2.0, 2.001, 1.999], method=losses)
    assert compression_quality.verdict_of(found, "method") == verdict


def test_the_difference_to_plain_compares_equal_seeds() -> None:
    assert compression_quality.above_plain(result(plain=[2.0, 4.0, 4.0], method=[2.2]), "method") == pytest.approx(0.1)
