import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.observe.event_pool import EventPool


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(size: int = 4) -> tuple[Any, EventPool]:
    stream = _load("fake_events").FakeStream()
    pool = EventPool(stream.make_event, size, is_capturing=lambda: stream.capturing, stream=lambda: stream.key)
    return stream, pool


def measure(stream: Any, pool: EventPool, key: str, duration_ns: int) -> None:
    token = pool.begin(key)
    stream.now_ns += duration_ns
    if token is not None:
        pool.end(token)


def test_a_pair_has_the_device_time_between_its_ends():
    stream, pool = make()
    measure(stream, pool, "forward", 3_000_000)
    stream.complete_all()
    assert pool.resolve() == [("forward", 3_000_000)]


def test_a_pair_that_has_not_completed_is_resolved_later():
    stream, pool = make()
    measure(stream, pool, "a", 1000)
    stream.complete_all()
    measure(stream, pool, "b", 2000)
    assert pool.resolve() == [("a", 1000)]
    assert (pool.resolve(), pool.in_flight_count) == ([], 1)
    stream.complete_all()
    assert pool.resolve() == [("b", 2000)]


def test_one_call_asks_once_more_than_it_resolves():
    stream, pool = make(size=8)
    for i in range(6):
        measure(stream, pool, str(i), 1000)
        if i == 2:
            stream.complete_all()
    assert len(pool.resolve()) == 3
    assert stream.queries == 4


def test_events_are_used_again():
    stream, pool = make(size=2)
    for _ in range(50):
        measure(stream, pool, "a", 1000)
        stream.complete_all()
        pool.resolve()
    assert stream.made == 2


def test_an_exhausted_pool_answers_unknown():
    stream, pool = make(size=2)
    measure(stream, pool, "a", 1000)
    measure(stream, pool, "b", 1000)
    assert pool.begin("c") is None
    assert pool.unknown_count == 1


def test_nothing_is_recorded_or_queried_during_capture():
    stream, pool = make()
    measure(stream, pool, "a", 1000)
    open_pair = pool.begin("b")
    stream.complete_all()
    stream.capturing = True
    assert pool.begin("c") is None
    assert open_pair is not None
    assert not pool.end(open_pair)
    assert pool.resolve() == []
    stream.capturing = False
    assert pool.resolve() == [("a", 1000)]
    assert pool.unknown_count == 2


def test_a_pair_over_two_streams_is_unknown():
    stream, pool = make()
    token = pool.begin("a")
    stream.key = "side"
    assert token is not None
    assert not pool.end(token)
    stream.complete_all()
    assert (pool.resolve(), pool.unknown_count) == ([], 1)


def test_a_failing_device_turns_the_pool_off_without_raising():
    pool = make()[1]
    token = pool.begin("a")
    assert token is not None
    pool.end(token)
    token.end.error = "CUDA error: device-side assert triggered\nmore"  # type: ignore[attr-defined]
    assert pool.resolve() == []
    assert pool.failure == "RuntimeError: CUDA error: device-side assert triggered"
    assert pool.begin("b") is None
