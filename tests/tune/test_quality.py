"""The quality guard: what losses allow, and what leaves its class."""

import math
import random

import pytest

from hotloop.change.tune.quality import judge_losses, make_bands
from hotloop.core.findings import Numerics

FALLING = [2.0 * math.exp(-i / 50) + 0.01 * math.sin(7 * i) for i in range(80)]


def noisy(seed: int, shift: float = 0.0) -> list[float]:
    generator = random.Random(seed)
    return [x * (1 + generator.gauss(0, 0.02)) + shift for x in FALLING]


@pytest.mark.parametrize("numerics", list(Numerics))
def test_equal_bits_pass_in_every_class(numerics: Numerics) -> None:
    assert judge_losses(make_bands([FALLING, FALLING]), FALLING, numerics).status == "passed"


def test_one_bit_fails_exact_and_passes_reordered() -> None:
    bands = make_bands([FALLING, FALLING])
    changed = [*FALLING[:5], math.nextafter(FALLING[5], 9), *FALLING[6:]]
    found = judge_losses(bands, changed, Numerics.EXACT)
    assert (found.status, "step 6" in found.reason) == ("rejected", True)
    assert judge_losses(bands, changed, Numerics.REORDERED).status == "passed"


def test_a_first_loss_far_off_is_rejected() -> None:
    bands = make_bands([FALLING, FALLING])
    changed = [FALLING[0] * 1.001, *FALLING[1:]]
    assert judge_losses(bands, changed, Numerics.REORDERED).status == "rejected"
    assert judge_losses(bands, changed, Numerics.LOSSY).status == "passed"


def test_a_training_that_learns_less_is_rejected_in_every_class() -> None:
    bands = make_bands([FALLING, FALLING])
    stuck = [FALLING[0]] * len(FALLING)
    for numerics in Numerics:
        assert judge_losses(bands, stuck, numerics).status == "rejected", numerics


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_diverged(bad: float) -> None:
    found = judge_losses(make_bands([FALLING, FALLING]), [*FALLING[:9], bad, *FALLING[10:]], Numerics.LOSSY)
    assert (found.status, "diverged: the loss of step 10" in found.reason) == ("rejected", True)


def test_a_baseline_that_does_not_repeat_needs_three_processes() -> None:
    assert "only 2" in make_bands([noisy(1), noisy(2)]).unknown
    bands = make_bands([noisy(1), noisy(2), noisy(3), noisy(4)])
    assert (bands.unknown, bands.is_repeatable) == ("", False)
    assert judge_losses(bands, noisy(5), Numerics.EXACT).status == "passed"
    assert judge_losses(bands, noisy(5, shift=1.0), Numerics.LOSSY).status == "rejected"


def test_what_cannot_be_seen_is_unknown() -> None:
    assert judge_losses(make_bands([], "no scalar"), FALLING, Numerics.EXACT).reason == "no scalar"
    assert judge_losses(make_bands([FALLING, FALLING]), [None] * 80, Numerics.LOSSY).status == "unknown"
    assert judge_losses(make_bands([FALLING, FALLING]), FALLING[:10], Numerics.LOSSY).status == "unknown"
    assert "at least 8" in make_bands([[1.0], [1.0]]).unknown
