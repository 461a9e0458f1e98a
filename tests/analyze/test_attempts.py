"""Restarts, hosts that come and go, and hosts that stop."""

from dataclasses import replace

import pytest

from hotloop.evidence.analyze.hosts import describe_cost
from hotloop.evidence.analyze.trainings import analyze_run
from hotloop.judge.diagnose import find_problems

from .synthetic_hosts import Host, record_hosts


def restarted(recordings, **process):
    """The same processes with other ids, as a launcher starts them anew."""
    for one in recordings:
        one.process.update({"pid": one.process["pid"] + 10 * (1 + process.get("restart", 0)), **process})
    return recordings


def messages(training):
    return [one.message for one in training.health]


def test_an_attempt_after_a_kill_costs_its_gap_and_the_steps_made_again():
    a = Host("a")
    first = record_hosts([a], 40, first_state_step=0, ended="exception")
    second = restarted(record_hosts([a], 70, begin_s=10.0, seed=1, first_state_step=30), restart=1)
    (training,) = analyze_run([*first, *second])
    one, two = training.attempts
    assert (one.steps, one.first_step, one.gap_ns, one.repeated_steps) == (40, 0, None, None)
    assert (two.steps, two.first_step, two.repeated_steps, two.repeated_basis) == (70, 30, 10, "optimizer state")
    step_ns = one.trained_ns / 40
    assert two.gap_ns == pytest.approx(10e9 - 40 * step_ns, abs=5e6)
    assert two.repeated_ns == pytest.approx(10 * step_ns, rel=0.1)
    assert {r.restart for r in training.analysis.ranks} == {1}
    assert training.analysis.lead.steps == 70
    (message,) = messages(training)
    assert "1 earlier attempt (up to 40 steps per process) is not included" in message
    assert "s without a step and 10 steps repeated" in message


@pytest.mark.parametrize(
    ("saves_after", "repeated", "basis", "told"),
    [
        (24, 16, "last checkpoint", "s if the last checkpoint was loaded"),
        (None, None, None, "unknown"),
    ],
)
def test_without_the_optimizers_count_the_last_checkpoint_is_taken(saves_after, repeated, basis, told):
    first = record_hosts([Host("a")], 40, saves_after=saves_after)
    (training,) = analyze_run([*first, *restarted(record_hosts([Host("a")], 60, begin_s=5.0), restart=1)])
    again = training.attempts[1]
    assert (again.repeated_steps, again.repeated_basis, again.repeated_ns is None) == (repeated, basis, basis is None)
    assert told in describe_cost(training.attempts)


def test_a_node_that_joins_late_is_an_attempt_although_no_restart_is_counted():
    """torchrun starts all ranks anew when a node comes, and does not count that as a restart."""
    a, b = Host("a"), Host("b", offset_s=-20.0)
    first = record_hosts([a], 60, first_state_step=0)
    second = restarted(record_hosts([a, b], 90, begin_s=4.0, seed=2, first_state_step=50))
    (training,) = analyze_run([*first, *second])
    assert [(one.world_size, one.ranks_count, one.hosts) for one in training.attempts] == [
        (2, 2, ("a",)),
        (4, 4, ("a", "b")),
    ]
    assert training.attempts[1].repeated_steps == 10
    (message,) = messages(training)
    assert "world size 2, then 4; b joined" in message
    alone = restarted(record_hosts([a], 90, begin_s=4.0, seed=2))
    (training,) = analyze_run([*record_hosts([a, b], 60), *alone])
    assert "world size 4, then 2; b left" in messages(training)[0]


def test_launchers_count_restarts_each_for_itself():
    """Only the launcher whose rank failed counts; the other one starts its ranks anew for the new rendezvous."""
    hosts = [Host("a"), Host("b", offset_s=3.0)]
    first, second = record_hosts(hosts, 60), restarted(record_hosts(hosts, 80, begin_s=4.0, seed=3))
    for one in second[2:]:
        one.process["restart"] = 1
    (training,) = analyze_run([*second, *first])
    assert [(r.host, r.restart, r.steps) for r in training.analysis.ranks] == [
        ("a", 0, 80),
        ("a", 0, 80),
        ("b", 1, 80),
        ("b", 1, 80),
    ]
    assert [one.ranks_count for one in training.attempts] == [4, 4]


def test_a_host_that_stops_is_told_with_step_and_time():
    hosts = [Host("a"), Host("b", offset_s=3.0, stops_after=60)]
    (training,) = analyze_run(record_hosts(hosts, 200, timeout_ms=12_000, ended="exception"))
    assert [r.steps for r in training.analysis.ranks] == [60, 60, 60, 60]
    other = training.hosts[1]
    assert other.stopped_after_step == 60
    assert other.stopped_before_end_ns == pytest.approx(12e9, rel=0.01)
    assert "host b (ranks 2-3) stopped after step 60, 12 s before the end" in messages(training)[0]
    assert training.hosts[0].stopped_after_step is None


@pytest.mark.parametrize(("stops_after", "covered"), [(150, 150), (30, 169)])
def test_waiting_for_a_host_that_stopped_is_no_straggler(stops_after, covered):
    """The others go on without it, after 30 s of waiting."""
    hosts = [Host("a"), Host("b", offset_s=3.0, stops_after=stops_after)]
    (training,) = analyze_run(record_hosts(hosts, 200, timeout_ms=30_000, goes_on=True))
    assert {r.steps for r in training.analysis.ranks} == {covered}
    assert any(f"cover the {covered} steps" in message for message in messages(training))
    findings, _ = find_problems(training.analysis)
    assert {one.rule for one in findings}.isdisjoint({"straggler", "slow-link"})
    assert training.analysis.step_ns < 20e6


def test_a_straggler_beside_a_host_that_stopped_is_told():
    hosts = [Host("a"), Host("b", offset_s=3.0, stops_after=150)]
    (training,) = analyze_run(record_hosts(hosts, 200, timeout_ms=30_000, goes_on=True, slow={1: 6.0}))
    findings, _ = find_problems(training.analysis)
    assert [one.ranks for one in findings if one.rule == "straggler"] == [(1,)]


@pytest.mark.parametrize(("timeout_ms", "stopped_after"), [(100, None), (60_000, 60)])
def test_a_host_of_a_running_training_is_gone_only_after_a_while(timeout_ms, stopped_after):
    """Its recording may only be late to arrive."""
    hosts = [Host("a"), Host("b", stops_after=60)]
    running = record_hosts(hosts, 70, timeout_ms=timeout_ms, goes_on=True)
    running = [replace(one, closed=False, facts=[f for f in one.facts if f["kind"] != "end"]) for one in running]
    (training,) = analyze_run(running)
    assert training.hosts[1].stopped_after_step == stopped_after
