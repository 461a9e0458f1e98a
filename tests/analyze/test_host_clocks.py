"""Hosts whose clocks disagree: offset and drift are recovered within the stated uncertainty, and nothing else is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.evidence.analyze.measurement import steady_span_s
from hotloop.evidence.analyze.stats import FEWEST_STEPS, fit_line
from hotloop.evidence.analyze.summary import summarize_rank
from hotloop.evidence.analyze.trainings import analyze_run
from hotloop.judge.diagnose import find_problems

from .synthetic_hosts import Host, record_hosts


def the_other_host(recordings):
    (training,) = analyze_run(recordings)
    first, other = training.hosts
    assert (first.offset_ns, first.uncertainty_ns, first.basis) == (0, 0, "the reference")
    return training, other


def test_three_seconds_and_50_ppm_are_recovered():
    hosts = [Host("a"), Host("b", offset_s=3.0, drift_ppm=50.0)]
    training, other = the_other_host(record_hosts(hosts, 2_000))
    assert [r.rank for r in training.analysis.ranks] == [0, 1, 2, 3]
    assert other.ranks == (2, 3)
    seconds = 2_000 * 9.5e-3
    # The offset is told for the middle of the steps: half of the drift since they began is in it.
    assert other.offset_ns == pytest.approx(3e9 + 50e-6 * seconds / 2 * 1e9, abs=other.uncertainty_ns)
    assert other.uncertainty_ns < 2e6
    assert other.drift_ppm == pytest.approx(50.0, abs=5.0)
    assert other.basis == "ends of 1999 steps that both share"


@pytest.mark.parametrize("seed", range(12))
def test_the_offset_lies_within_the_stated_uncertainty(seed):
    offset_s, drift_ppm = (-1) ** seed * 0.4 * seed, (seed - 6) * 30.0
    hosts = [Host("a", ranks=1), Host("b", offset_s=offset_s, drift_ppm=drift_ppm, ranks=1)]
    _, other = the_other_host(record_hosts(hosts, 60 + 40 * seed, seed=seed, jitter_ms=0.1 * (1 + seed)))
    middle_s = (60 + 40 * seed) * 9.2e-3 / 2
    assert other.offset_ns == pytest.approx((offset_s + drift_ppm * 1e-6 * middle_s) * 1e9, abs=other.uncertainty_ns)


def test_a_line_is_found_within_its_uncertainty():
    """Anywhere between the first and the last difference, with a few steps that ended late on one side: 600 draws."""
    outside = 0
    for seed in range(600):
        draw = np.random.default_rng(seed)
        count, drift, noise_ns = (
            draw.integers(FEWEST_STEPS, 60 if seed % 2 else 3_000),
            draw.uniform(-300e-6, 300e-6),
            10 ** draw.uniform(2, 7),
        )
        at = np.cumsum(draw.uniform(5e6, 50e6, count)) + 1.7e18
        difference = draw.uniform(-1e12, 1e12) + drift * (at - at[0])
        true = difference[[0, -1]]
        late = draw.random(count) < draw.uniform(0, 0.1)
        seen = difference + draw.normal(0, noise_ns, count) + late * draw.exponential(20 * noise_ns, count)
        line = fit_line(at, seen)
        found = line.offset_ns + line.drift * (at[[0, -1]] - line.middle_ns)
        outside += bool(np.abs(found - true).max() > line.uncertainty_ns)
    assert outside <= 6


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1_000), count=st.integers(FEWEST_STEPS, 400), offset_ns=st.integers(-(10**12), 10**12))
def test_the_other_clock_is_as_far_behind(seed, count, offset_ns):
    """An offset is added to the answer and to nothing else, and the sign turns with the sides."""
    draw = np.random.default_rng(seed)
    at = np.cumsum(draw.uniform(5e6, 50e6, count))
    difference = draw.normal(0, 1e5, count)
    here, there = fit_line(at, difference), fit_line(at, -difference - offset_ns)
    assert -there.offset_ns == pytest.approx(here.offset_ns + offset_ns, abs=1.0)
    assert -there.drift == pytest.approx(here.drift, abs=1e-12)
    assert there.uncertainty_ns == pytest.approx(here.uncertainty_ns, abs=1.0)


def test_too_few_steps_tell_no_offset():
    assert fit_line(range(FEWEST_STEPS - 1), range(FEWEST_STEPS - 1)) is None
    (training,) = analyze_run(record_hosts([Host("a"), Host("b", offset_s=3.0)], FEWEST_STEPS))
    assert training.hosts[1].offset_ns is None
    assert "no step" in training.hosts[1].basis


def test_what_needs_no_clock_does_not_depend_on_it():
    """The same training with right and with wrong clocks: the same figures of every rank."""
    right, wrong = (
        analyze_run(record_hosts([Host("a"), Host("b", offset_s=offset_s)], slow={2: 4.0}, seed=5))
        for offset_s in (0.0, -7_200.0)
    )
    assert list(map(summarize_rank, right[0].processes)) == list(map(summarize_rank, wrong[0].processes))
    assert find_problems(right[0].analysis) == find_problems(wrong[0].analysis)
    assert "straggler" in {one.rule for one in find_problems(right[0].analysis)[0]}
    assert right[0].health == wrong[0].health


def test_without_an_exchange_the_offset_is_unknown_and_ranks_are_together_all_the_same():
    (training,) = analyze_run(record_hosts([Host("a"), Host("b", offset_s=500.0)], exchanges=False))
    other = training.hosts[1]
    assert (len(training.analysis.ranks), other.offset_ns, other.drift_ppm, other.uncertainty_ns) == (4, *[None] * 3)


def test_two_trainings_one_after_the_other_stay_apart_on_two_hosts():
    """The second begins before the first ended, if the wall clocks are believed."""
    hosts = [Host("a"), Host("b", offset_s=-30.0)]
    first = record_hosts(hosts, 100, run_id="one")
    second = record_hosts(hosts, 150, begin_s=20.0, seed=1, run_id="two", ppid=60)
    for process in second:
        process.process["pid"] += 10
    trainings = analyze_run([*second, *first])
    assert [(t.lead.run_id, len(t.analysis.ranks), t.hosts[1].offset_ns) for t in trainings] == [
        ("two", 4, pytest.approx(-30e9, abs=1e6)),
        ("one", 4, pytest.approx(-30e9, abs=1e6)),
    ]


def test_what_one_host_sampled_is_compared_with_the_steps_on_its_own_clock():
    recordings = record_hosts([Host("a"), Host("b", offset_s=500.0)])
    (training,) = analyze_run(recordings)
    on_a, on_b, elsewhere = (steady_span_s(training, recordings, host) for host in ("a", "b", "c"))
    assert on_b[0] - on_a[0] == pytest.approx(500.0, abs=0.1)
    assert elsewhere == on_a


def test_two_machines_of_one_name_are_two_hosts():
    recordings = record_hosts([Host("localhost"), Host("localhost", offset_s=2.0)])
    for one in recordings[2:]:
        one.process["ppid"] = 51
    training, other = the_other_host(recordings)
    assert [one.name for one in training.hosts] == ["localhost#1", "localhost#2"]
    assert other.offset_ns == pytest.approx(2e9, abs=other.uncertainty_ns)


def test_a_third_host_is_joined_through_the_second():
    """The first and the third never train together: the first left before the third came."""
    a, b, c = Host("a", ranks=1), Host("b", offset_s=1.0, ranks=1), Host("c", offset_s=3.0, ranks=1)
    first = record_hosts([a, b], 100)
    second = record_hosts([b, c], 100, begin_s=10.0, seed=1)
    for one in second:
        one.process["pid"] += 10
    (training,) = analyze_run([*first, *second])
    assert [host.name for host in training.hosts] == ["b", "c"]
    assert training.hosts[1].offset_ns == pytest.approx(2e9, abs=training.hosts[1].uncertainty_ns)
    assert [one.hosts for one in training.attempts] == [("a", "b"), ("b", "c")]
