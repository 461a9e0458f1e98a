import numpy as np
import pytest

from hotloop.analyze.process import analyze_process
from hotloop.analyze.segments import build_steps
from hotloop.analyze.steady import Unrest, find_unrest

from .synthetic import MS, Rows, recording

ONE_THREAD = {"torch_threads": 1, "cores": 2}


def steps_of(*times_ms: tuple[int, int], count: int = 200, **extra: int) -> Rows:
    """Steps that compute for the first and have CPU time of the second of a pair; the pairs take turns."""
    rows = Rows()
    for i in range(count):
        compute_ms, cpu_ms = times_ms[i % len(times_ms)]
        rows.step(
            input_wait_ns=0,
            optimizer_ns=0,
            forward_ns=compute_ms * MS // 3,
            backward_ns=compute_ms * MS - compute_ms * MS // 3,
            cpu_ns=cpu_ms * MS,
            **extra,
        )
    return rows


def find(rows: Rows) -> Unrest | None:
    steps = build_steps(rows.array(), closed=True)
    return find_unrest(steps, np.ones(len(steps.weight), dtype=np.bool_))


def test_steps_that_last_longer_without_computing_more_were_kept_from_the_cores():
    found = find(steps_of((10, 10), (20, 11)))
    assert found is not None
    assert found.running_ratio == pytest.approx(0.1)
    assert found.variation_ratio == pytest.approx(1 / 3)


def test_steps_that_compute_more_are_the_programs_own():
    assert find(steps_of((10, 10), (20, 20))) is None


def test_work_that_uses_one_of_four_threads_is_the_programs_own():
    assert find(steps_of((10, 40), (20, 50))) is None


def test_even_steps_are_no_unrest():
    assert find(steps_of((10, 10), (11, 10))) is None


@pytest.mark.parametrize("event", ["checkpoints", "bursts", "compiles", "iterators", "gc_count", "collectives"])
def test_steps_with_events_of_their_own_are_no_evidence(event):
    assert find(steps_of((10, 10), (20, 11), **{event: 1})) is None


def test_a_program_that_was_never_on_its_cores_tells_nothing():
    assert find(steps_of((10, 2), (20, 3))) is None


def test_a_step_that_mostly_waits_for_data_tells_nothing():
    assert find(steps_of((10, 10), (20, 11), after_input_ns=60 * MS)) is None


def test_few_steps_tell_nothing():
    assert find(steps_of((10, 10), (20, 11), count=30)) is None


def unrest_lines(*facts: dict[str, object], **process: object) -> list[str]:
    found = analyze_process(recording(steps_of((10, 10), (20, 11)), *facts, **{**ONE_THREAD, **process}))
    assert found is not None
    assert {h.level for h in found.health} <= {"info"}
    return [h.message for h in found.health]


def test_unrest_is_one_line_of_health():
    assert unrest_lines() == [
        "the steps' computation varies by 33%, and during most of the extra time of slow steps the process was not "
        "running; other programs may be using these cores; shares are means"
    ]


@pytest.mark.parametrize(
    "process",
    [{"torch_threads": 4, "cores": 2}, {"world_size": 2}, {"rank": None}, {"accelerator": "cuda"}],
)
def test_a_process_that_may_be_competing_with_itself_is_not_judged(process):
    assert unrest_lines(**process) == []


def test_loader_workers_may_be_what_a_step_competes_with():
    assert unrest_lines({"kind": "loader", "id": 0, "num_workers": 2}) == []
