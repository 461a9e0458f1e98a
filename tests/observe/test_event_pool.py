"""Pairs of events alone; test_device_events.py has captures, streams, a full pool and a device that fails."""

from typing import Any

from hotloop.agent.observe.event_pool import EventPool
from tests.observe.fake_events import FakeStream


def make(size: int = 4) -> tuple[Any, EventPool]:
    stream = FakeStream()
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
