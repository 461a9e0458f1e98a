"""What another thread is at, read in one piece: right, without a trace in the collector's state, and without danger."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotloop.observe import stacks
from hotloop.observe.places import user_stack
from hotloop.observe.stacks import can_read_stacks, line_of, read_stack

HERE = str(Path(__file__).resolve())


class Waiting:
    """A thread that waits in ``inner``, called by ``outer``."""

    def __init__(self) -> None:
        self.ready, self.done = threading.Event(), threading.Lock()
        self.done.acquire()
        self.lines: dict[str, int] = {}
        self.thread = threading.Thread(target=self.outer, daemon=True)

    def outer(self) -> None:
        self.inner(); self.lines["after"] = 1  # fmt: skip  # noqa: E702

    def inner(self) -> None:
        self.lines["inner"] = sys._getframe().f_lineno + 3
        self.lines["outer"] = self.outer.__code__.co_firstlineno + 1
        self.ready.set()
        self.done.acquire()


@contextmanager
def waiting() -> Iterator[Waiting]:
    one = Waiting()
    one.thread.start()
    assert one.ready.wait(10)
    while read_stack(one.thread.ident or 0).calls[0][0].co_name != "inner":  # still in ready.set()
        pass
    try:
        yield one
    finally:
        one.done.release()
        one.thread.join(10)


def test_the_calls_of_another_thread_with_the_line_of_each() -> None:
    with waiting() as one:
        stack = read_stack(one.thread.ident or 0)
        names = [code.co_name for code, _ in stack.calls]
        assert names[:2] == ["inner", "outer"]
        assert names[-1] == "_bootstrap"
        assert stack.module["__name__"] == __name__
        assert stack.threads_count >= 2
        places, leaf = user_stack(stack)
        mine = [place for place in places if place[0] == HERE]
        assert mine == [(HERE, one.lines["outer"], "outer"), (HERE, one.lines["inner"], "inner")]
        assert leaf == f"{__name__}:inner"


def test_the_innermost_calls_are_kept() -> None:
    with waiting() as one:
        places, _ = user_stack(read_stack(one.thread.ident or 0), 1)
        assert [place[2] for place in places] == ["inner"]


def test_a_thread_that_is_not_there_has_no_calls() -> None:
    stack = read_stack(-1)
    assert stack.calls == [] and stack.module == {} and stack.threads_count >= 1
    assert user_stack(stack) == ((), "")


@pytest.mark.parametrize("is_on", [True, False])
def test_collecting_is_as_it_was(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with waiting() as one:
            assert gc.isenabled() is is_on
            read_stack(one.thread.ident or 0)
            assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
def test_collecting_is_as_it_was_after_a_failure(monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    def fail() -> Any:
        raise MemoryError

    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        monkeypatch.setattr(sys, "_current_frames", fail)
        with pytest.raises(MemoryError):
            read_stack(1)
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_no_frame_outlives_the_reading() -> None:
    with waiting() as one:
        frame = sys._current_frames()[one.thread.ident or 0]
        before = sys.getrefcount(frame)
        stack = read_stack(one.thread.ident or 0)
        assert sys.getrefcount(frame) == before
        assert stack.calls


def test_no_collection_begins_while_frames_are_read() -> None:
    """At the lowest threshold nearly every object that is made would start one."""
    seen: list[bool] = []

    def look() -> dict[int, Any]:
        seen.append(gc.isenabled())
        return {}

    class Frames:
        _current_frames = staticmethod(look)

    threshold = gc.get_threshold()
    was = stacks.sys
    stacks.sys = Frames  # type: ignore[assignment]
    try:
        gc.set_threshold(1)
        read_stack(1)
    finally:
        gc.set_threshold(*threshold)
        stacks.sys = was
    assert seen == [False]


def test_without_a_global_lock_no_stack_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not can_read_stacks()
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    assert can_read_stacks()


def test_an_instruction_of_no_line_is_at_the_first_line() -> None:
    code = line_of.__code__
    assert line_of(code, 1 << 20) == code.co_firstlineno


HUNTED = """
import gc, sys, threading
from hotloop.observe.stacks import read_stack

def busy():
    x = 0
    for i in range(300):
        x += i
    return x

gc.callbacks.append(lambda phase, info: busy())  # collecting lets other threads run
gc.set_threshold(30)
sys.setswitchinterval(1e-6)
done = False

def deep(n):
    return busy() if n == 0 else deep(n - 1) + 1

def work():
    while not done:
        deep(3); deep(11); [deep(k) for k in range(4)]

thread = threading.Thread(target=work, daemon=True)
thread.start()
names = set()
for _ in range({count}):
    for code, instruction in read_stack(thread.ident).calls:
        names.add(code.co_name)
done = True
thread.join()
assert {{"work", "deep", "busy"}} <= names, names
print("read")
"""


def test_stacks_are_read_while_every_few_objects_start_a_collection() -> None:
    """Walking ``f_back`` in a loop of Python dies here of a segmentation fault after some hundred stacks (3.11)."""
    source = HUNTED.format(count=3_000)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "read"), done.stderr[-2000:]
