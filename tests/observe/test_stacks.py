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
    assert (stack.calls, stack.module) == ([], {})
    assert stack.threads_count >= 1
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
import gc, random, sys, threading, time
from hotloop.observe.stacks import read_stack

reader, collections_count = threading.get_ident(), 0

def let_others_run(phase, info):
    global collections_count
    if threading.get_ident() == reader and phase == "stop":
        collections_count += 1
        time.sleep(5e-5)

random.seed(7)
functions = []
for number in range(40):  # of many sizes: a frame that ended lies across others by then
    count = random.randrange(1, 30)
    body = "".join(f"    v{k} = depth + {k}\\n" for k in range(count))
    exec(
        f"def f{number}(depth, seed):\\n{body}    if depth <= 0:\\n        return v0\\n"
        "    seed = (seed * 1103515245 + 12345) & 0x7fffffff\\n"
        f"    return functions[(seed >> 8) % 40](depth - 1, seed) + v{count - 1}\\n"
    )
    functions.append(globals()[f"f{number}"])
done = False

def work():
    seed = 1
    while not done:
        seed = (seed * 1103515245 + 12345) & 0x7fffffff
        functions[(seed >> 8) % 40]((seed >> 16) % 12, seed)

thread = threading.Thread(target=work, daemon=True)
thread.start()
gc.callbacks.append(let_others_run)
gc.set_threshold(50)
sys.setswitchinterval(5e-4)
names, kept = set(), []
for turn in range(1_500):
    kept.extend([[] for _ in range(turn % 23)])
    names.update(code.co_name for code, _ in read_stack(thread.ident).calls)
    if len(kept) > 9_000:
        kept.clear()
    if turn % 20 == 0:
        time.sleep(5e-4)
done = True
thread.join()
gc.callbacks.clear()
print(len(names) > 35, collections_count > 50)
"""


def test_stacks_are_read_while_every_few_objects_start_a_collection() -> None:
    """Walking ``f_back`` in a loop of Python here reads frames that ended, and dies or fails within seconds (3.11)."""
    done = subprocess.run([sys.executable, "-c", HUNTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr[-2000:]
