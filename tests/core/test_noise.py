import random
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.noise import noise_of_mean_ratio


def steps(seed: int, count: int, spread: float = 0.02, mean: float = 20e6) -> list[float]:
    draw = random.Random(seed)
    return [mean * (1.0 + draw.gauss(0.0, spread)) for _ in range(count)]


def plain_ratio(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 / statistics.fmean(values)


def test_noise_of_steps_that_drift_together_is_larger():
    draw = random.Random(2)
    drifting = [100.0 + level for level in (draw.gauss(0.0, 10.0) for _ in range(50)) for _ in range(40)]
    shuffled = draw.sample(drifting, len(drifting))
    assert noise_of_mean_ratio(drifting) > 3 * noise_of_mean_ratio(shuffled)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(40, 400), st.floats(2.0, 1e4), st.data())
def test_one_outlier_does_not_hide_six_percent(seed, count, times, data):
    """However long the one step is: two standard errors stay below what is left of six percent of the others."""
    values = steps(seed, count)
    values[data.draw(st.integers(0, count - 1))] *= times
    share = 0.06 * 20e6 / statistics.fmean(values)
    assert 2 * noise_of_mean_ratio(values) < share


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(64, 400), st.floats(0.1, 0.4))
def test_steps_that_are_uneven_throughout_stay_noisy(seed, count, spread):
    values = [max(1.0, value) for value in steps(seed, count, spread=spread)]
    assert noise_of_mean_ratio(values) > 0.6 * plain_ratio(values)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.1, 0.4), st.floats(3.0, 10.0))
def test_what_one_step_in_ten_or_more_does_counts(seed, slow_share, times):
    draw = random.Random(seed)
    values = [value * (times if draw.random() < slow_share else 1.0) for value in steps(seed, 400)]
    slow = sum(value > 30e6 for value in values)
    if slow > 0.05 * 400 + 1:  # rarer ones are outliers
        assert noise_of_mean_ratio(values) > 0.6 * plain_ratio(values)
