"""What the host waits for the device between phases is the phases' time."""

from __future__ import annotations

import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.recording import TIME_FIELDS
from hotloop.evidence.analyze.partition import charge_waits, charged_ratio, host_column
from hotloop.evidence.analyze.process import analyze_process
from hotloop.evidence.analyze.segments import Steps, build_steps
from hotloop.judge.diagnose import RULES
from hotloop.judge.diagnose.rules.full_precision import BOUND_PARTS

from .synthetic import MS, recording, steps

ITEM = {"forward_ns": 5 * MS, "backward_ns": 12 * MS, "optimizer_ns": 3 * MS, "input_wait_ns": 2 * MS}
DEVICE = {"device_forward_ns": 50 * MS, "device_backward_ns": 100 * MS, "device_optimizer_ns": 5 * MS}


def steps_of(count: int = 20, every: int = 1, **fields: int) -> Steps:
    host = {name: value for name, value in fields.items() if not name.startswith("device_")}
    return build_steps(steps(fields if i % every == 0 else host for i in range(count)).array(), closed=True)


def times(steps: Steps, step: int = 9) -> dict[str, float]:
    return {name: int(steps.columns[name][step]) / MS for name in TIME_FIELDS if steps.columns[name][step]}


@pytest.mark.parametrize("every", [1, 3])
def test_a_wait_for_the_device_is_the_phases_that_it_computes(every: int) -> None:
    before = steps_of(every=every, **ITEM, other_ns=135 * MS, **DEVICE)
    after = charge_waits(before)
    # 157 ms, of which the device's phases are 155: of the gap nothing is left, of the wait for input all.
    assert times(after) == pytest.approx(
        {"input_wait_ns": 2, "forward_ns": 50, "backward_ns": 100, "optimizer_ns": 5}, abs=0.001
    )
    assert after.step_ns.tolist() == before.step_ns.tolist()
    assert [sum(int(after.columns[name][i]) for name in TIME_FIELDS) for i in range(20)] == before.step_ns.tolist()
    assert host_column(after.columns, "forward_ns")[9] == 5 * MS
    assert charged_ratio(after, after.columns["index"] >= 0) == pytest.approx(135 / 157)


def test_what_the_device_leaves_of_the_step_stays_the_scripts_own() -> None:
    """Python of 20 ms after the wait: the device has nothing to do meanwhile."""
    after = charge_waits(steps_of(**ITEM, other_ns=155 * MS, **DEVICE))
    assert times(after)["other_ns"] == pytest.approx(20)


def test_a_wait_for_input_that_the_device_computes_through_costs_nothing() -> None:
    fields = {**ITEM, "input_wait_ns": 140 * MS}
    after = charge_waits(steps_of(**fields, **DEVICE))
    assert times(after)["input_wait_ns"] == pytest.approx(5)


def test_a_host_that_launches_late_has_all_of_its_gaps() -> None:
    """The device waits for the host: events around a phase are as far apart as the phase takes on the host."""
    device = {"device_forward_ns": 5 * MS, "device_backward_ns": 12 * MS, "device_optimizer_ns": 3 * MS}
    before = steps_of(**ITEM, other_ns=30 * MS, **device)
    assert times(charge_waits(before)) == times(before)


def test_steps_with_a_validation_and_those_of_a_cpu_are_left_alone() -> None:
    for fields in ({**DEVICE, "bursts": 1}, {}):
        before = steps_of(**ITEM, other_ns=135 * MS, **fields)
        assert times(charge_waits(before)) == times(before)


def test_too_few_timed_steps_say_nothing_of_the_others() -> None:
    before = steps_of(every=10, **ITEM, other_ns=135 * MS, **DEVICE)
    assert charge_waits(before) is before


def test_a_float32_model_on_a_device_that_never_rests_is_worth_half_of_the_step() -> None:
    rows = steps([{**ITEM, "other_ns": 135 * MS, **DEVICE}] * 40)
    model = {"kind": "model", "id": 0, "class": "GPT", "dtype": "float32", "parameters": 10**8, "device": "cuda"}
    process = analyze_process(recording(rows, model, accelerator="cuda"))
    assert process.rank.breakdown.share("other") == pytest.approx(0.0, abs=1e-3)
    assert [part.host_mean_ns for part in process.device_phases] == [5 * MS, 12 * MS, 3 * MS]
    assert any("waits 135 ms per step for the device" in one.message for one in process.health)
    analysis = Analysis(ranks=(process.rank,), unit="sample", units_per_step=16.0, accelerator=True)
    finding = RULES["full-precision"].judge(analysis)
    share = process.rank.breakdown.share("forward") + process.rank.breakdown.share("backward")
    assert finding.saving.mid_ratio == pytest.approx(BOUND_PARTS[1] * share, abs=0.01)
