"""Device times of phases: which step and phase a pair belongs to, and when there is no answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.agent.observe.device_events import CaptureWatch, DeviceTimer, time_on_device
from hotloop.agent.observe.guard import GUARD
from hotloop.agent.replay.engine import Engine
from hotloop.core import events as ev
from hotloop.core.recording import DEVICE_TIME_FIELDS, FIELD, TIME_FIELDS

FORWARD = (ev.FORWARD_IN, ev.FORWARD_OUT, 11, ev.GRAD | ev.TRAINING | ev.LEARNS)
NOGRAD = (ev.FORWARD_IN, ev.FORWARD_OUT, 11, ev.TRAINING | ev.LEARNS)
BACKWARD = (ev.BACKWARD_IN, ev.BACKWARD_OUT)
OPTIMIZER = (ev.STEP_IN, ev.STEP_OUT, 21)
H2D = (ev.PHASE_IN, ev.PHASE_OUT, FIELD["h2d_ns"])
SAVE = (ev.PHASE_IN, ev.PHASE_OUT, FIELD["checkpoint_ns"])


class FakeDevice:
    """Streams on which work takes time after the host queued it; ``now_ns`` is how far the device has come."""

    def __init__(self) -> None:
        self.queued_ns: dict[int, int] = {0: 0}
        self.now_ns = 0
        self.stream = 0
        self.capturing = False
        self.recorded = self.queried = self.made = 0
        self.error: str | None = None

    def work(self, duration_ns: int) -> None:
        self.queued_ns[self.stream] = self.queued_ns.get(self.stream, 0) + duration_ns

    def catch_up(self) -> None:
        self.now_ns = max(self.queued_ns.values())

    def make_event(self) -> FakeEvent:
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at_ns = -1

    def record(self) -> None:
        assert not self._device.capturing, "recorded while a graph was captured"
        if self._device.error is not None:
            raise RuntimeError(self._device.error)
        self._device.recorded += 1
        self.at_ns = self._device.queued_ns.get(self._device.stream, 0)

    def query(self) -> bool:
        assert not self._device.capturing, "queried while a graph was captured"
        if self._device.error is not None:
            raise RuntimeError(self._device.error)
        self._device.queried += 1
        return self.at_ns <= self._device.now_ns

    def elapsed_time(self, end_event: Any) -> float:
        assert self.query(), "asked before it completed: a real device would refuse"
        assert end_event.query(), "asked before it completed: a real device would refuse"
        return (end_event.at_ns - self.at_ns) / 1e6


class Bench:
    """What a training's hooks note, on a fake device; every event takes 1 us of the host."""

    def __init__(self, pool_size: int = 8, min_interval_ns: int = 0) -> None:
        self.device = FakeDevice()
        self.facts: list[dict[str, Any]] = []
        self.host_ns = 1_000
        self.rows: list[list[int]] = []
        self.codes: list[int] = []
        self.engine = Engine(0, lambda row: self.rows.append(list(row)), self.facts.append)
        self.agent = SimpleNamespace(
            ring=SimpleNamespace(emit=self.feed), rests_for=0, tell=lambda fact: self.engine.tell(dict(fact))
        )

        def make(note: Callable[..., Any], fail: Callable[[str], None]) -> DeviceTimer:
            self.timer = DeviceTimer(
                self.device.make_event,
                lambda: self.device.capturing,
                pool_size,
                note=note,
                fail=fail,
                stream=lambda: self.device.stream,
                clock=lambda: self.host_ns,
                min_interval_ns=min_interval_ns,
            )
            return self.timer

        time_on_device(self.agent, make)
        self.start()  # the row that had begun before the timer

    def start(self) -> None:
        self.phase(OPTIMIZER)

    def feed(self, code: int, *arguments: int) -> int:
        self.host_ns += 1_000
        self.codes.append(code)
        self.engine.feed(code, self.host_ns, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
        return len(self.codes)

    def begin(self, phase: tuple[int, ...]) -> None:
        self.agent.ring.emit(phase[0], *phase[2:])

    def end(self, phase: tuple[int, ...]) -> None:
        self.agent.ring.emit(phase[1], *phase[2:3])

    def phase(self, phase: tuple[int, ...], device_ns: int = 0, inside: Callable[[], None] = lambda: None) -> None:
        self.begin(phase)
        self.device.work(device_ns)
        inside()
        self.end(phase)

    def step(self, forward_ns: int = 0, backward_ns: int = 0, optimizer_ns: int = 0) -> None:
        self.phase(FORWARD, forward_ns)
        self.phase(BACKWARD, backward_ns)
        self.phase(OPTIMIZER, optimizer_ns)

    def settle(self) -> None:
        """The device does all that was queued, and the next step asks it."""
        self.device.catch_up()
        self.step()

    def times(self) -> dict[int, tuple[int | None, ...]]:
        return {
            f["row"]: tuple(f[key] for key in DEVICE_TIME_FIELDS) for f in self.facts if f["kind"] == "device_times"
        }


@pytest.fixture(autouse=True)
def _no_hidden_failure() -> Any:
    before = dict(GUARD.failures)
    yield
    assert GUARD.failures == before


def test_each_phase_gets_its_own_device_time() -> None:
    bench = Bench()
    bench.phase(H2D, 500)
    bench.step(10_000, 20_000, 3_000)
    bench.settle()
    assert bench.times()[1] == (10_000, 20_000, 3_000, 500)


def test_a_phase_that_did_not_run_took_no_time() -> None:
    bench = Bench()
    bench.phase(FORWARD, 7_000)
    bench.phase(OPTIMIZER)
    bench.settle()
    assert bench.times()[1] == (7_000, 0, 0, 0)


def test_micro_batches_of_a_row_add_up() -> None:
    bench = Bench()
    for _ in range(3):
        bench.phase(FORWARD, 1_000)
        bench.phase(BACKWARD, 2_000)
    bench.phase(OPTIMIZER)
    bench.settle()
    assert bench.times()[1] == (3_000, 6_000, 0, 0)


def test_times_are_told_only_once_the_device_is_through() -> None:
    bench = Bench()
    bench.step(10_000, 20_000, 3_000)
    bench.step(1_000, 1_000, 1_000)
    assert bench.times() == {}
    assert bench.timer.waiting_rows == 2
    bench.device.now_ns = 33_000
    bench.step()
    assert set(bench.times()) == {1}
    bench.settle()
    assert set(bench.times()) == {1, 2, 3, 4}
    assert bench.times()[2] == (1_000, 1_000, 1_000, 0)


def test_an_exhausted_pool_leaves_phases_unknown_and_comes_back() -> None:
    bench = Bench(pool_size=4)
    bench.step(1_000, 1_000, 1_000)
    bench.step(1_000, 1_000, 1_000)
    bench.step(1_000, 1_000, 1_000)
    assert bench.times() == {3: (None, None, None, 0)}
    bench.device.catch_up()
    bench.step(5_000)
    bench.settle()
    assert bench.times()[1] == (1_000, 1_000, 1_000, 0)
    assert bench.times()[2] == (1_000, None, None, 0)
    assert bench.times()[5] == (0, 0, 0, 0)
    assert bench.device.made <= 8


def test_a_device_that_never_answers_costs_bounded_memory() -> None:
    bench = Bench(pool_size=8)
    for _ in range(1_000):
        bench.step(1_000, 1_000, 1_000)
    assert bench.device.made == 16
    assert bench.timer.waiting_rows <= 8


def test_nothing_is_recorded_or_queried_while_a_graph_is_captured() -> None:
    bench = Bench()
    bench.step(1_000, 1_000, 1_000)
    bench.device.catch_up()
    bench.device.capturing = True  # FakeEvent asserts
    recorded, queried = bench.device.recorded, bench.device.queried
    bench.step(1_000, 1_000, 1_000)
    bench.step(1_000, 1_000, 1_000)
    assert (bench.device.recorded, bench.device.queried) == (recorded, queried)
    bench.device.capturing = False
    bench.step(4_000)
    bench.settle()
    assert bench.times()[1] == (1_000, 1_000, 1_000, 0)
    assert bench.times()[2] == bench.times()[3] == (None, None, None, 0)
    assert bench.times()[4] == (4_000, 0, 0, 0)


def test_a_phase_in_which_a_capture_begins_is_unknown() -> None:
    bench = Bench()
    bench.begin(FORWARD)
    bench.device.capturing = True
    bench.end(FORWARD)
    bench.device.capturing = False
    bench.phase(OPTIMIZER)
    bench.settle()
    assert bench.times()[1] == (None, 0, 0, 0)


def test_a_nested_phase_is_taken_off_the_one_around_it() -> None:
    bench = Bench()

    def closure() -> None:
        bench.phase(FORWARD, 2_000)
        bench.phase(BACKWARD, 3_000)

    bench.phase(OPTIMIZER, 1_000, closure)
    bench.settle()
    assert bench.times()[1] == (2_000, 3_000, 1_000, 0)


def test_an_unknown_phase_makes_the_one_around_it_unknown() -> None:
    bench = Bench(pool_size=1)
    bench.phase(OPTIMIZER, 1_000, lambda: bench.phase(FORWARD, 2_000))
    bench.settle()
    assert bench.times()[1] == (None, 0, None, 0)


def test_a_copy_on_a_side_stream_is_measured_there() -> None:
    bench = Bench()
    bench.device.work(50_000)
    bench.device.stream = 1
    bench.phase(H2D, 4_000)
    bench.device.stream = 0
    bench.step(1_000)
    bench.settle()
    assert bench.times()[1] == (1_000, 0, 0, 4_000)


def test_a_phase_that_ends_on_another_stream_is_unknown() -> None:
    bench = Bench()
    bench.begin(FORWARD)
    bench.device.stream = 1
    bench.end(FORWARD)
    bench.phase(OPTIMIZER)
    bench.settle()
    assert bench.times()[1] == (None, 0, 0, 0)


def test_a_phase_that_spans_two_rows_is_unknown_in_both() -> None:
    bench = Bench()
    bench.begin(FORWARD)
    bench.phase(OPTIMIZER)
    bench.end(FORWARD)
    bench.phase(OPTIMIZER)
    bench.settle()
    assert bench.times()[1] == (None, 0, 0, 0)
    assert bench.times()[2] == (None, 0, 0, 0)


@pytest.mark.parametrize("phase", [NOGRAD, SAVE])
def test_phases_that_are_not_timed_record_nothing(phase: tuple[int, ...]) -> None:
    bench = Bench()
    recorded = bench.device.recorded
    bench.phase(phase, 1_000)
    assert bench.device.recorded == recorded
    bench.phase(OPTIMIZER)
    bench.settle()
    assert bench.times()[1] == (0, 0, 0, 0)


def test_at_most_one_row_in_an_interval_is_timed() -> None:
    bench = Bench(min_interval_ns=50_000)  # a step takes 6 us of the fake host
    for _ in range(100):
        bench.step(1_000)
        bench.device.catch_up()
    told = sorted(bench.times())
    assert len(told) >= 8
    assert all(6 <= b - a <= 9 for a, b in pairwise(told))


def test_a_step_after_rested_ones_is_timed_and_its_row_is_the_right_one() -> None:
    bench = Bench()
    bench.agent.rests_for = 5
    bench.step(1_000, 2_000, 3_000)  # begun before it was known: the steps that rest are in what is timed
    for _ in range(3):
        bench.agent.ring.emit(ev.RESTED, 5)
        bench.step(4_000, 5_000, 6_000)
        bench.device.catch_up()
    bench.agent.ring.emit(ev.RESTED, 5)
    # Rows 1, 7, 13 and 19 were noted, and those between them rested.
    assert bench.times() == {1: (1_000, 2_000, 3_000, 0), **dict.fromkeys((7, 13, 19), (4_000, 5_000, 6_000, 0))}


def test_a_training_whose_optimizer_is_not_seen_is_timed_from_backward_to_backward() -> None:
    class Backwards(Bench):
        def start(self) -> None:
            self.phase(BACKWARD)

    bench = Backwards()
    for _ in range(3):
        bench.phase(FORWARD, 1_000)
        bench.phase(BACKWARD, 2_000)
        bench.device.now_ns = bench.device.queued_ns[0] - 3_000
    assert bench.times() == {1: (1_000, 2_000, 0, 0)}


def test_lost_events_cost_the_times_that_they_belonged_to() -> None:
    bench = Bench()
    bench.step(1_000, 1_000, 1_000)
    bench.engine.resume()
    bench.device.catch_up()
    bench.step(2_000, 1_000, 1_000)
    bench.settle()
    bench.settle()
    assert bench.times() == {1: (1_000, 1_000, 1_000, 0), 3: (0, 0, 0, 0), 4: (0, 0, 0, 0)}


def test_a_device_error_ends_the_timing_and_is_told_once() -> None:
    bench = Bench()
    bench.step(1_000)
    bench.device.error = "CUDA error: an illegal memory access was encountered\nmore lines"
    for _ in range(5):
        bench.step(1_000)
    health = [f for f in bench.facts if f["kind"] == "health"]
    assert len(health) == 1
    assert health[0]["message"] == (
        "device times are no longer recorded: RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    assert bench.times() == {}
    assert bench.timer.waiting_rows == 0


def test_host_times_still_sum_to_the_row() -> None:
    bench = Bench()
    bench.phase(OPTIMIZER, 1_000, lambda: bench.phase(FORWARD, 2_000))
    bench.step(1_000, 1_000, 1_000)
    for row in bench.rows:
        assert sum(row[FIELD[name]] for name in TIME_FIELDS) == row[FIELD["end_ns"]] - row[FIELD["start_ns"]]


def test_a_step_that_raised_leaves_the_timer_balanced() -> None:
    bench = Bench()
    bench.begin(FORWARD)
    bench.begin(OPTIMIZER)  # has no end
    bench.device.work(2_000)
    bench.end(FORWARD)
    bench.phase(BACKWARD, 3_000)
    bench.phase(OPTIMIZER)
    bench.device.catch_up()
    bench.step(1_000)
    bench.settle()
    assert bench.times()[1] == (None, 3_000, None, 0)
    assert bench.times()[2] == (1_000, 0, 0, 0)


def test_a_timer_that_starts_inside_a_phase_skips_it() -> None:
    bench = Bench()
    bench.end(BACKWARD)
    bench.step(1_000)
    bench.settle()
    assert bench.times()[1] == (1_000, 0, 0, 0)


class TestCaptureWatch:
    def test_a_capture_on_any_thread_is_seen(self) -> None:
        watch = CaptureWatch()
        begun, go_on = threading.Event(), threading.Event()

        def capture() -> None:
            watch.wrap_begin(lambda: None)()
            begun.set()
            assert go_on.wait(10)
            watch.wrap_end(lambda: None)()

        thread = threading.Thread(target=capture)
        thread.start()
        assert begun.wait(10)
        seen_inside = watch.is_capturing()
        go_on.set()
        thread.join(10)
        assert seen_inside
        assert not watch.is_capturing()

    def test_the_original_runs_as_a_capture_and_its_answer_is_kept(self) -> None:
        watch = CaptureWatch()
        seen: list[bool] = []
        begin = watch.wrap_begin(lambda *args, **kwargs: (seen.append(watch.is_capturing()), args, kwargs))
        assert begin(1, pool=2) == (None, (1,), {"pool": 2})
        assert seen == [True]
        assert watch.is_capturing()
        assert watch.wrap_end(lambda: "ended")() == "ended"
        assert not watch.is_capturing()

    def test_a_capture_that_fails_is_over(self) -> None:
        watch = CaptureWatch()

        def fail() -> None:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")

        with pytest.raises(RuntimeError, match="Invalidated"):
            watch.wrap_begin(fail)()
        assert not watch.is_capturing()
        watch.wrap_begin(lambda: None)()
        with pytest.raises(RuntimeError, match="Invalidated"):
            watch.wrap_end(fail)()
        assert not watch.is_capturing()

    def test_captures_nest(self) -> None:
        watch = CaptureWatch()
        begin, end = watch.wrap_begin(lambda: None), watch.wrap_end(lambda: None)
        begin(), begin(), end()
        assert watch.is_capturing()
        end()
        assert not watch.is_capturing()

    def test_a_query_that_is_under_way_holds_a_capture_back(self) -> None:
        watch = CaptureWatch()
        began = threading.Event()
        thread = threading.Thread(target=watch.wrap_begin(began.set))
        with watch.lock:
            thread.start()
            assert not began.wait(0.05)
            assert not watch.is_capturing()
        thread.join(10)
        assert began.is_set()
