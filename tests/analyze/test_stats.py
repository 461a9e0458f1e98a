import numpy as np
import pytest

from hotloop.evidence.analyze.stats import describe_phase, fit_slope, weighted_quantiles


def ones(count: int) -> np.ndarray:
    return np.ones(count, dtype=np.int64)


def test_a_phase_is_described_in_whole_nanoseconds():
    stats = describe_phase(np.array([1, 2, 3, 4], dtype=np.int64), ones(4), 20)
    assert (stats.total_ns, stats.mean_ns, stats.min_ns, stats.max_ns) == (10, 2, 1, 4)
    assert stats.share_ratio == 0.5


def test_blocks_weigh_as_much_as_their_steps():
    stats = describe_phase(np.array([10, 900], dtype=np.int64), np.array([1, 9], dtype=np.int64), 910)
    assert (stats.mean_ns, stats.median_ns, stats.min_ns) == (91, 100, 10)


def test_weighted_quantiles_are_those_of_the_repeated_values():
    values, weight = np.array([5.0, 1.0, 3.0]), np.array([2, 3, 5])
    repeated = np.sort(np.repeat(values, weight))
    for q in (0.0, 0.25, 0.5, 0.9, 1.0):
        assert weighted_quantiles(values, weight, (q,))[0] == repeated[int(q * 9)]


def test_the_slope_is_found_beside_outliers():
    x = np.arange(100.0)
    y = 3.0 * x + np.where(x % 10 == 0, 5000.0, 0.0)
    slope = fit_slope(x, y)
    assert slope.per_x == pytest.approx(3.0, rel=0.2)


def test_a_flat_noisy_series_has_a_slope_within_its_noise():
    x = np.arange(150.0)
    slope = fit_slope(x, np.random.default_rng(3).normal(1e9, 1e6, 150))
    assert abs(slope.per_x) < 3 * slope.noise_per_x


def test_a_rise_that_ends_is_no_certain_growth():
    x = np.arange(200.0)
    slope = fit_slope(x, np.minimum(x, 100.0))
    assert slope.per_x < 2.5 * slope.noise_per_x


def test_too_few_points_or_no_spread_have_no_slope():
    assert fit_slope(np.arange(5.0), np.arange(5.0)) is None
    assert fit_slope(np.full(20, 3.0), np.arange(20.0)) is None
