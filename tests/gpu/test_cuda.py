"""hotloop on a CUDA device: what it must not change, what it must not do, and whether its device times are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from .training import Ran, train, train_both

pytestmark = pytest.mark.gpu

Measure = Callable[..., None]
PHASES = ("forward", "backward", "optimizer")
SYNCHRONIZING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")

MOST_ADDED_NS = 100_000
"""Host CPU time per step that hooks and event pairs may add, with room for a machine that is not quiet."""


def median_times(ran: Ran, rows: range) -> dict[str, float]:
    """Median device ns of each phase over the timed rows."""
    facts = [fact for row, fact in ran.device_times().items() if row in rows]
    assert len(facts) >= len(rows) // 2, f"device times of {len(facts)} of {len(rows)} rows"
    found = {}
    for phase in PHASES:
        values = [fact[f"{phase}_ns"] for fact in facts if fact[f"{phase}_ns"] is not None]
        assert values, f"no device time of {phase} in {len(facts)} rows"
        found[phase] = median(values)
    return found


@pytest.mark.parametrize("deep", [False, True])
def test_a_plain_loop_trains_the_same_to_the_bit(deep: bool, tmp_path: Path, measure: Measure) -> None:
    without, with_agent = train_both("eager", "cuda", tmp_path, deep=deep)
    assert with_agent.result["digest"] == without.result["digest"]
    assert with_agent.result["losses"] == without.result["losses"]
    assert sum(row["forwards"] > 0 for row in with_agent.seen.rows) == without.result["steps"]
    assert sum(row["h2d_ns"] for row in with_agent.seen.rows) > 0, "copies to the device were not seen"
    timed = with_agent.device_times()
    assert timed, "no row has device times"
    backwards = {row["index"]: row["backwards"] for row in with_agent.seen.rows}
    assert all((fact["backward_ns"] != 0) == (backwards[row] > 0) for row, fact in timed.items())
    measure(rows=len(with_agent.seen.rows), timed_rows=len(timed))


def test_memory_is_the_training_device_s(tmp_path: Path, measure: Measure) -> None:
    ran = train("eager", "cuda", tmp_path, attached=True)
    facts = [fact["device"] for fact in ran.seen.of_kind("memory") if fact["device"] is not None]
    assert facts, "no memory of the device was recorded"
    last = facts[-1]
    assert 0 < last["allocated"] <= last["peak"]
    assert last["allocated"] <= last["reserved"] <= last["total"] == ran.result["total_bytes"]
    assert abs(last["allocated"] - ran.result["allocated_bytes"]) <= 8 << 20
    assert ran.seen.rows[-1]["device_allocated_bytes"] > 0
    measure(memory=last, allocated_bytes=ran.result["allocated_bytes"])


def test_a_whole_step_in_a_graph_is_captured_undisturbed(tmp_path: Path, measure: Measure) -> None:
    without, with_agent = train_both("graph_whole_step", "cuda", tmp_path)
    assert with_agent.result == without.result
    assert len(with_agent.seen.rows) >= without.result["eager_steps"]
    captured = [row for row in with_agent.seen.rows if row["end_ns"] - row["start_ns"] > 1.4e9]
    assert len(captured) == 1, "the row with the long capture"
    fact = with_agent.device_times().get(captured[0]["index"])
    if fact is not None:  # it may also have been a row that was not timed
        assert [fact[f"{phase}_ns"] for phase in PHASES] == [None] * 3
    measure(rows=len(with_agent.seen.rows), timed_rows=len(with_agent.device_times()))


def test_graphed_callables_train_the_same(tmp_path: Path, measure: Measure) -> None:
    without, with_agent = train_both("graphed_callables", "cuda", tmp_path)
    assert with_agent.result == without.result
    assert sum(row["optimizer_ns"] > 0 for row in with_agent.seen.rows) >= without.result["steps"]
    measure(rows=len(with_agent.seen.rows), timed_rows=len(with_agent.device_times()))


def test_reduce_overhead_keeps_its_graphs(tmp_path: Path, measure: Measure) -> None:
    without, with_agent = train_both("reduce_overhead", "cuda", tmp_path)
    assert with_agent.result == without.result  # digest, graphs, breaks, skipped CUDA graphs
    assert with_agent.stderr == without.stderr, "a warning more or less"
    measure(**without.result)


def test_a_prefetcher_on_a_side_stream_is_not_disturbed(tmp_path: Path, measure: Measure) -> None:
    without, with_agent = train_both("prefetch", "cuda", tmp_path)
    assert with_agent.result == without.result
    copies = [fact["h2d_ns"] for fact in with_agent.device_times().values() if fact["h2d_ns"]]
    assert copies, "no copy on the side stream has a device time"
    measure(h2d_median_ns=median(copies))


def test_event_pairs_agree_with_the_kernel_timeline(tmp_path: Path, measure: Measure) -> None:
    ran = train("timeline", "cuda", tmp_path, attached=True)
    first = ran.result["first_row"]
    pairs = median_times(ran, range(first, first + ran.result["steps"]))
    kernels = {phase: median(values) for phase, values in ran.result["kernels_ns"].items()}
    measure(pairs_ns=pairs, kernels_ns=kernels)
    for phase, least_busy in (("forward", 0.90), ("backward", 0.90), ("optimizer", 0.60)):
        # A pair spans the gaps between kernels too, so it is never shorter than they are.
        assert least_busy <= kernels[phase] / pairs[phase] <= 1.02, (phase, kernels[phase], pairs[phase])


def test_event_pairs_sum_to_a_device_bound_step(tmp_path: Path, measure: Measure) -> None:
    ran = train("device_bound", "cuda", tmp_path, attached=True)
    first = ran.result["first_row"]
    pairs = median_times(ran, range(first + 5, first + ran.result["steps"] - 5))
    ratio = sum(pairs.values()) / ran.result["step_wall_ns"]
    measure(pairs_ns=pairs, step_wall_ns=ran.result["step_wall_ns"], ratio=ratio)
    assert 0.85 <= ratio <= 1.05


def test_no_synchronize_is_added(tmp_path: Path, measure: Measure) -> None:
    without, with_agent = train_both("runtime_calls", "cuda", tmp_path)
    before, after = without.result["counts"], with_agent.result["counts"]
    measure(without=before, with_agent=after, steps=without.result["steps"])
    assert [after[name] for name in SYNCHRONIZING] == [before[name] for name in SYNCHRONIZING]
    assert after["cudaEventQuery"] > before["cudaEventQuery"], "no pair was read: this test proves nothing"


def test_the_agent_s_cost_per_step(tmp_path: Path, measure: Measure) -> None:
    differences = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        without, with_agent = train_both("overhead", "cuda", folder)
        differences.append(median(with_agent.result["blocks_ns"]) - median(without.result["blocks_ns"]))
    step_ns = median(without.result["blocks_ns"])
    measure(added_ns=median(differences), differences_ns=differences, step_ns=step_ns)
    assert median(differences) <= MOST_ADDED_NS


def test_a_cpu_training_beside_a_gpu_leaves_cuda_alone(tmp_path: Path, measure: Measure) -> None:
    without, with_agent = train_both("stay_away", "cuda", tmp_path)
    assert with_agent.result == without.result
    assert with_agent.result["initialized"] is False
    measure(child=with_agent.result["child"])


def test_every_training_is_covered() -> None:
    """Meta-test: each training in trainings.py is asked for in this file."""
    text = Path(__file__).read_text()
    source = Path(__file__).with_name("trainings.py").read_text()
    names: list[Any] = [n.strip() for n in source.partition("for training in (")[2].partition(")")[0].split(",")]
    assert len([name for name in names if name]) == 10
    assert all(f'"{name}"' in text for name in names if name)
