"""Times by size -> a line: exact where there is one, and its error where there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.link_fit import fit_link


@given(st.floats(1e3, 1e7), st.floats(1e6, 1e12))
def test_a_line_is_found_again(latency_ns: float, rate: float) -> None:
    sizes = [1 << shift for shift in range(10, 27, 2)]
    fit = fit_link([(size, latency_ns + size / rate * 1e9) for size in sizes])
    assert fit is not None
    assert fit.bytes_per_s == pytest.approx(rate, rel=0.01)
    assert fit.time_ns(1 << 24) == pytest.approx(latency_ns + (1 << 24) / rate * 1e9, rel=0.01)


def test_what_passes_at_once_does_not_raise_the_rate_and_shows_as_error() -> None:
    burst = [(1e3, 0.34e6), (6.4e4, 0.46e6), (1e6, 77.9e6), (4e6, 348e6)]
    fit = fit_link(burst)
    assert fit is not None
    assert fit.bytes_per_s == pytest.approx(11.6e6, rel=0.02)
    assert fit.error_bytes == 6.4e4
    assert fit.error_ratio is not None
    assert fit.error_ratio > 5


@pytest.mark.parametrize("points", [[], [(1e3, 1e5)], [(1e3, 1e5), (1e3, 2e5)], [(1e3, 2e5), (1e6, 2e5)]])
def test_too_few_sizes_or_no_slope_give_no_fit(points: list[tuple[float, float]]) -> None:
    assert fit_link(points) is None
