"""The zoo's own arithmetic: rates, intervals, times per unit, and the fix's arguments."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import accuracy
import harness
import pytest
import scenarios


def finding(rule: str, severity: str = "high", mid: float | None = 0.3, **changes: Any) -> dict[str, Any]:
    opportunity = rule in ("small-batch", "full-precision", "uncompiled-model", "slow-optimizer", "memory-headroom")
    saving = None if mid is None else {"low_ratio": 0.8 * mid, "mid_ratio": mid, "high_ratio": min(1.0, 1.1 * mid)}
    kind = "opportunity" if opportunity else "fault"
    return {"rule": rule, "kind": kind, "severity": severity, "saving": saving, **changes}


def result(
    scenario: str,
    rules: list[str],
    findings: list[dict[str, Any]],
    realised: float | None = 0.3,
    **changes: Any,
) -> dict[str, Any]:
    twin = None
    if realised is not None and rules:
        twin = {
            "fixed": [{"time_per_unit_ns": 1e6 * (1 - realised)}] * 2,
            "faulty": [{"time_per_unit_ns": 1e6}] * 2,
        }
    return {
        "schema": "hotloop.zoo/1",
        "scenario": scenario,
        "split": "tuned",
        "style": "plain",
        "rules": rules,
        "level": 2 if rules else 0,
        "status": "done",
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"cpu": "a cpu", "cores": 2, "python": "3.12.1", "torch": "2.13.0", "hotloop": "0.1.0"},
        "forecast": {"findings": findings},
        "twin": twin,
        **changes,
    }


def rates_of(*results: dict[str, Any]) -> list[tuple[int, int]]:
    return [(r.hits, r.count) for r in accuracy.compute_rates([accuracy.judge(one) for one in results])]


def test_only_the_first_finding_of_the_planted_kind_counts() -> None:
    planted = ["gc-pause"]
    behind_an_opportunity = result("a", planted, [finding("full-precision"), finding("gc-pause")])
    behind_a_fault = result("b", planted, [finding("input-bound"), finding("gc-pause")])
    unseen = result("c", planted, [])
    assert rates_of(behind_an_opportunity, behind_a_fault, unseen)[0] == (1, 3)


def test_a_healthy_run_may_have_loud_opportunities_and_quiet_faults() -> None:
    quiet = result("a", [], [finding("full-precision", "high"), finding("gc-pause", "low")])
    alarmed = result("b", [], [finding("gc-pause", "medium")])
    assert rates_of(quiet, alarmed)[1] == (1, 2)


def test_an_opportunity_wins_with_half_of_its_low_forecast() -> None:
    # low is 0.8 x 0.4 = 0.32
    enough = result("a", ["full-precision"], [finding("full-precision", "high", 0.4)], realised=0.161)
    too_little = result("b", ["full-precision"], [finding("full-precision", "high", 0.4)], realised=0.159)
    only_low = result("c", ["full-precision"], [finding("full-precision", "low", 0.4)], realised=0.0)
    assert rates_of(enough, too_little, only_low)[2] == (1, 2)


def test_an_opportunity_that_was_not_planted_counts_as_it_was_tried() -> None:
    said = [finding("slow-optimizer", "medium", 0.2)]
    entry = {"rule": "slow-optimizer", "low_ratio": 0.16}
    won = result("a", [], said, tried=[{**entry, "with_ns": [80.0, 82.0], "without_ns": [100.0, 101.0]}])
    lost = result("b", [], said, tried=[{**entry, "with_ns": [120.0], "without_ns": [100.0]}])
    untried = result("c", [], said, tried=[{**entry, "with_ns": [], "without_ns": [], "reason": "none"}])
    assert rates_of(won, lost, untried)[2] == (1, 2)


def test_both_faults_of_a_pair_have_to_be_named() -> None:
    both = result("a", ["gc-pause", "padding-waste"], [finding("padding-waste"), finding("gc-pause")])
    one = result("b", ["gc-pause", "padding-waste"], [finding("padding-waste")])
    assert rates_of(both, one)[3] == (1, 2)


def test_a_forecast_is_judged_only_where_the_realised_saving_is_large() -> None:
    near = result("a", ["gc-pause"], [finding("gc-pause", mid=0.40)], realised=0.31)
    far = result("b", ["gc-pause"], [finding("gc-pause", mid=0.45)], realised=0.31)
    small = result("c", ["gc-pause"], [finding("gc-pause", mid=0.9)], realised=0.1)
    unnamed = result("d", ["gc-pause"], [], realised=0.31)
    opportunity = result("e", ["full-precision"], [finding("full-precision", mid=0.31)], realised=0.31)
    assert rates_of(near, far, small, unnamed, opportunity)[4] == (1, 3)


def test_the_wilson_interval_is_the_textbook_one() -> None:
    low, high = accuracy.wilson_interval(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert accuracy.wilson_interval(0, 0) == (0.0, 1.0)
    assert accuracy.wilson_interval(10, 10)[1] == pytest.approx(1.0)


def test_the_realised_saving_comes_from_the_fastest_runs() -> None:
    assert accuracy.realised_saving([60.0, 80.0, 900.0], [170.0, 100.0, 101.0]) == pytest.approx(0.4)
    assert accuracy.realised_saving([], [1.0]) is None
    assert accuracy.realised_spread([50.0, 60.0], [100.0]) == pytest.approx(0.1)


def test_a_twin_runs_until_the_fastest_runs_of_both_sides_repeat() -> None:
    assert not harness.is_settled([], [])
    assert not harness.is_settled([10.0], [20.0])
    assert harness.is_settled([10.0, 10.2], [20.0, 20.2])
    assert not harness.is_settled([10.0, 10.2], [20.0, 31.0])
    assert harness.is_settled([10.0, 10.2, 14.0], [20.0, 31.0, 20.1])
    assert harness.is_settled([10.0, 12.0, 14.0, 16.0, 18.0], [20.0, 31.0, 25.0, 40.0, 60.0])


@pytest.mark.parametrize(
    ("unit", "step", "expected"),
    [
        ("step", {"mean_ns": 8e6}, 8e6),
        ("sample", {"mean_ns": 8e6, "unit": "sample", "units_per_step": 16.0}, 5e5),
        ("sample", {"mean_ns": 8e6, "unit": "step", "units_per_step": 1.0, "samples_per_s": 4000.0}, 2.5e5),
        ("token", {"mean_ns": 8e6, "unit": "sample", "units_per_step": 16.0, "tokens_per_s": None}, None),
        ("useful-step", {"mean_ns": 8e6}, 16e6),
        ("step", None, None),
    ],
)
def test_the_time_per_unit_is_unknown_where_the_report_does_not_state_it(
    unit: str, step: dict[str, Any] | None, expected: float | None
) -> None:
    report = {"step": step, "ranks": [{"steps": 100, "skipped_steps": 50}]}
    assert accuracy.time_per_unit_ns(report, unit) == expected


@pytest.mark.parametrize("split", ["tuned", "seen"])
def test_every_scenario_names_known_rules_and_enough_are_healthy(split: str) -> None:
    found = harness.choose_scenarios(split, "*")
    rules = {p.stem.replace("_", "-") for p in (harness.ROOT / "src/hotloop/judge/diagnose/rules").glob("[a-z]*.py")}
    assert {rule for s in found for rule in s.rules} <= rules
    assert sum(s.kind == "healthy" for s in found) >= 16
    assert {s.kind for s in found} >= {"healthy", "planted"}


def test_the_fix_is_applied_as_the_forecast_prescribes_it() -> None:
    (scenario,) = harness.choose_scenarios("tuned", "input-transform")
    fix = {"technique": "loader-workers", "settings": {"num_workers": 3}}
    prescribed = harness.fix_arguments(scenario, {"findings": [finding("input-bound", fix=fix)]})
    assert prescribed == ["--fixed", "--workers", "3"]
    open_setting = {"technique": "loader-workers", "settings": {}}
    assert harness.fix_arguments(scenario, {"findings": [finding("input-bound", fix=open_setting)]}) == ["--fixed"]
    assert harness.fix_arguments(scenario, {"findings": []}) == ["--fixed"]


def test_an_unknown_key_in_a_scenario_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    path = tmp_path / "scenarios.toml"
    path.write_text('[[scenario]]\nid = "a"\nscript = "a.py"\nrulez = "gc-pause"\n')
    with pytest.raises(ValueError, match="unknown keys rulez"):
        scenarios.load_scenarios(path, "tuned")


FAKE_HOTLOOP = """
    import json, pathlib, sys
    words = sys.argv[1:]
    target = pathlib.Path(words[words.index("--json") + 1])
    fixed = "--fixed" in words
    log = pathlib.Path(__file__).with_name("calls")
    log.write_text(log.read_text() + ("fixed " if fixed else "forecast " if "--no-deep" not in words else "faulty "))
    assert log.read_text().startswith("forecast")
    step = {"mean_ns": 5e6 if fixed else 10e6, "unit": "step", "units_per_step": 1}
    saving = {"low_ratio": 0.4, "mid_ratio": 0.45, "high_ratio": 0.5}
    found = {"rule": "gc-pause", "kind": "fault", "severity": "high", "saving": saving, "where": [{"file": words[-3]}]}
    target.write_text(json.dumps({"outcome": {"training_seen": True}, "step": step, "findings": [found], "ranks": []}))
"""


def test_the_forecast_is_stored_before_the_twin_runs_interleaved(tmp_path: Path) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text(textwrap.dedent(FAKE_HOTLOOP))
    (tmp_path / "calls").write_text("")
    bench = harness.Bench(
        hotloop=(sys.executable, str(fake)), out=tmp_path / "out", commit="c", machine={"cores": 2}, try_others=True
    )
    (scenario,) = harness.choose_scenarios("tuned", "tidy-heap")
    stored = harness.run_one(bench, scenario, 2)
    assert stored["status"] == "done"
    assert (tmp_path / "calls").read_text().split() == ["forecast", "fixed", "faulty", "fixed", "faulty"]
    assert stored == harness.load_result(harness.result_path(bench.out, scenario, 2))
    assert stored["forecast"]["findings"][0]["where"][0]["file"] == "tests/zoo/scripts/tidy_heap.py"
    assert harness.describe_result(stored) == "gc-pause high; forecast 0.45, realized 0.50"


def test_a_run_that_is_too_slow_leaves_no_process_behind(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os, signal, time;" + (
        'signal.signal(signal.SIGTERM, signal.SIG_IGN); open("pid", "w").write(str(os.getpid())); time.sleep(60)'
    )
    child = subprocess.Popen([sys.executable, "-c", script + "'])"], cwd=tmp_path, start_new_session=True)
    written = tmp_path / "pid"
    while not (written.exists() and written.read_text()):
        assert child.poll() is None
    grandchild = int(written.read_text())
    assert grandchild in harness.descendants(child.pid)
    harness.end_tree(child, patience_s=0.2)
    assert child.poll() is not None
    assert _is_gone(grandchild)


def _is_gone(pid: int) -> bool:
    """Ended, whether or not whoever inherited it has collected it yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_the_time_of_other_programs_is_told_from_our_own() -> None:
    spin = [sys.executable, "-c", "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"]
    others = harness.Others()
    with others.watch():
        subprocess.run(spin, check=True)
    alone = others.ratio()
    others.forget()
    with others.watch():
        # A shell that does not wait for its child leaves it to be someone else's.
        busy = "import time; e=time.time()+1.0\nwhile time.time()<e: 0"
        subprocess.run(["/bin/sh", "-c", f"{sys.executable} -c '{busy}' &"], check=True)
        time.sleep(1.1)
    beside = others.ratio()
    assert alone is not None
    assert beside is not None
    assert beside > 0.5 / (os.cpu_count() or 1)


def test_a_turn_waits_for_whoever_holds_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "turn"
    with lock.open("a") as other:
        with harness.take_turn(lock), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
