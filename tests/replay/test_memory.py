"""What the hooks write is what hotloop's process reads, whatever lies in between."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest

from hotloop.agent.observe.ring import Ring
from hotloop.agent.replay import memory as module
from hotloop.agent.replay.memory import STUCK_S, EventMemory, NotOurs
from hotloop.core.events import (
    CODE_BITS,
    COPY,
    HEADER_BYTES,
    MEMORY_BYTES,
    RING_BYTES,
    SLOT,
    SLOT_BYTES,
    SLOTS,
    STEP_OUT,
    TEXT,
)


@pytest.fixture
def ring() -> Ring:
    return Ring("nobody", "token", 5)


@pytest.fixture
def memory(ring: Ring) -> Iterator[EventMemory]:
    made = EventMemory(os.dup(ring._descriptor))
    yield made
    made.close()


def test_events_arrive_in_order(ring: Ring, memory: EventMemory) -> None:
    for number in range(100):
        ring.emit(STEP_OUT, number, -number)
    assert memory.newest() == 100
    events = list(memory.read())
    assert [(code, arguments[:2]) for code, _, arguments, _ in events] == [(STEP_OUT, (n, -n)) for n in range(100)]
    assert (memory.pid, memory.anchor_ns, list(memory.read())) == (os.getpid(), 5, [])


@pytest.mark.parametrize("length", [0, 1, 47, 48, 49, 5_000])
def test_a_fact_of_any_length_is_whole(ring: Ring, memory: EventMemory, length: int) -> None:
    ring.tell({"kind": "x" * length})
    ring.emit(STEP_OUT, 1)
    first, second = memory.read()
    assert first[3] == {"kind": "x" * length}
    assert second[0] == STEP_OUT


def test_threads_that_write_at_once_lose_nothing(ring: Ring, memory: EventMemory) -> None:
    def write(name: str) -> None:
        for number in range(300):
            ring.tell({"kind": name * 60, "n": number})
            ring.emit(STEP_OUT, number)

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(memory.read())
    told = [fact for code, _, _, fact in events if code == TEXT]
    assert [fact["n"] for fact in told if fact["kind"][0] == "a"] == list(range(300))
    assert len(events) == 1200


def test_a_reader_that_was_overtaken_says_how_much_it_lost(ring: Ring, memory: EventMemory) -> None:
    for number in range(SLOTS + 5_000):
        ring.emit(STEP_OUT, number)
    seen = [arguments[0] for _, _, arguments, _ in memory.read()]
    assert seen[-1] == SLOTS + 4_999
    assert seen == list(range(seen[0], SLOTS + 5_000))
    assert memory.lost_events == seen[0]


def test_copies_arrive_unless_newer_ones_took_their_place(ring: Ring, memory: EventMemory) -> None:
    ring.copy(b"ab" * 4, 2, 2, 4, 1)
    code, _, arguments, data = next(memory.read())
    assert (code, arguments[2:], data) == (COPY, (2, 2, 4, 1), b"ab" * 4)
    for number in range(6):
        ring.copy(bytes([number]) * 700_000, 0, 1, 700_000, 1)
    assert [data and data[0] for _, _, _, data in memory.read()] == [None, None, None, None, 4, 5]


def test_garbage_ends_in_no_error_and_no_endless_loop(ring: Ring, memory: EventMemory) -> None:
    draw = random.Random(3)
    for _ in range(30):
        at = HEADER_BYTES + draw.randrange(RING_BYTES // 64) * 64
        ring._memory[at : at + 6_400] = draw.randbytes(len(ring._memory[at : at + 6_400]))
    ring._memory[HEADER_BYTES : HEADER_BYTES + 64_000] = draw.randbytes(64_000)
    for count, _ in enumerate(memory.read(is_over=True)):
        assert count <= 4 * SLOTS


@pytest.mark.parametrize("length", [-1, 1 << 40, -(1 << 63)])
def test_a_length_of_no_sense_holds_no_fact(ring: Ring, memory: EventMemory, length: int) -> None:
    ring.emit(TEXT, length)
    ring.emit(COPY, length, length)
    ring.emit(STEP_OUT, 1)
    assert [(code, more) for code, _, _, more in memory.read()] == [(TEXT, None), (COPY, None), (STEP_OUT, None)]


def test_an_event_that_a_thread_is_still_writing_is_waited_for(ring: Ring, memory: EventMemory) -> None:
    number = ring._take()
    ring.emit(STEP_OUT, 2)
    assert list(memory.read()) == []
    SLOT.pack_into(
        ring._memory, HEADER_BYTES + number * SLOT_BYTES, 0, 1, 0, 0, 0, 0, 0, number << CODE_BITS | STEP_OUT
    )
    assert [arguments[0] for _, _, arguments, _ in memory.read()] == [1, 2]


@pytest.mark.parametrize("is_over", [True, False])
def test_what_a_thread_that_is_gone_began_is_given_up(
    ring: Ring, memory: EventMemory, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    ring._take()
    ring.emit(TEXT, 100)  # without its parts
    ring.emit(STEP_OUT, 2)
    now_s = 50.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    if not is_over:
        assert list(memory.read()) == []
        now_s += 2 * STUCK_S
    assert [arguments[0] for _, _, arguments, _ in memory.read(is_over=is_over)] == [2]


def test_memory_that_could_be_cut_is_refused(tmp_path) -> None:
    descriptor = os.memfd_create("other")
    os.ftruncate(descriptor, MEMORY_BYTES)
    with pytest.raises(NotOurs):
        EventMemory(descriptor)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotOurs):
        EventMemory(os.open(tmp_path / "file", os.O_RDWR))
