import pytest

from hotloop.core.findings import Finding
from hotloop.judge.diagnose.rules.phase_drift import phase_drift

from .build_analysis import find, make_analysis

RISING = [2_000_000] * 30 + [4_000_000] * 30 + [9_000_000] * 40


def test_what_grew_and_stays_is_told_and_what_came_and_went_is_not() -> None:
    grew = [2_000_000] * 34 + [7_100_000] * 33 + [6_800_000] * 33
    went = [2_000_000] * 34 + [9_000_000] * 33 + [5_000_000] * 33
    assert isinstance(phase_drift.judge(make_analysis(columns={"optimizer_ns": grew, "cpu_ns": grew})), Finding)
    assert phase_drift.judge(make_analysis(columns={"optimizer_ns": went, "cpu_ns": went})) is None


def test_an_optimizer_that_becomes_slower_is_told_with_both_times() -> None:
    one = find(phase_drift, make_analysis(columns={"optimizer_ns": RISING, "cpu_ns": RISING}))
    assert one.phase == "optimizer"
    assert (one.evidence["first_third_ns"], one.evidence["last_third_ns"]) == (2_000_000, 9_000_000)
    assert one.cost_ns == pytest.approx(3_400_000, rel=0.1)


@pytest.mark.parametrize(
    "columns",
    [
        {"optimizer_ns": RISING[::-1]},
        {"optimizer_ns": [5_000_000] * 90 + [90_000_000] * 10},  # bursts at the end
        {"optimizer_ns": RISING, "cpu_ns": [5_000_000] * 100},  # its threads wait for cores
        {"optimizer_ns": RISING, "tokens": [100] * 30 + [200] * 30 + [450] * 40},
        {"optimizer_ns": RISING, "forward_ns": RISING, "backward_ns": RISING},  # the machine became busy
    ],
)
def test_what_is_no_drift_of_the_phase(columns: dict[str, list[int]]) -> None:
    assert phase_drift.judge(make_analysis(columns={"cpu_ns": RISING} | columns)) is None


def test_on_a_busy_machine_no_saving_is_promised() -> None:
    busy = make_analysis(columns={"optimizer_ns": RISING, "cpu_ns": RISING}, cores=2, idle_cores=(0.0, 2))
    one = find(phase_drift, busy)
    assert one.saving is None
