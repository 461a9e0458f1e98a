"""For what was asked for and needs steps inside the training: the events replayed here as well, row by row.

Only with a strategy, a trial of ``tune``, ``--trace``, ``--nvtx``, ``--deep`` or ``--watch-numbers``. A person's plain
run loads none of this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from hotloop.agent.replay.engine import Engine
from hotloop.agent.replay.recorder import Recorder, Row
from hotloop.core.events import FLAG, LEFT_OUT

from . import facts
from .agent import Agent
from .guard import GUARD, guarded
from .ring import Ring

_clock = time.perf_counter_ns


class LocalRing:
    """The ring of a process whose events are also replayed in it."""

    def __init__(self, ring: Ring, engine: Engine) -> None:
        self._ring = ring
        self._engine = engine
        self._busy = False

    def emit(self, code: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
        number: int = self._ring.emit(code, a, b, c, d, e, f)
        if self._busy:  # what a subscriber does is no part of the training
            return number
        self._busy = True
        try:
            self._engine.feed(code, _clock(), a, b, c, d, e, f)
        except Exception as error:
            GUARD.record("replaying an event", error)
        finally:
            self._busy = False
        return number

    def tell(self, fact: Mapping[str, Any]) -> None:
        self._ring.tell(fact)
        if fact.get("kind") in ("loader", "model", "optimizer", "place"):
            self._engine.tell(dict(fact))

    def copy(self, data: bytes | memoryview, what: int, rows: int, columns: int, item: int) -> None:
        self._ring.copy(data, what, rows, columns, item)

    def request(self) -> int:
        return self._ring.request()

    def note_rested(self, steps: int) -> None:
        self._ring.note_rested(steps)

    def begin_in_child(self) -> None:
        self.__dict__.pop("emit", None)  # timed on a device, which a child does not have
        self._ring.begin_in_child()


class _Marked:
    """Settings of a subscriber on the recorder reach hotloop's process as well."""

    ring: Ring

    def set_flag(self, flag: int, value: bool) -> None:
        super().set_flag(flag, value)  # type: ignore[misc]
        self.ring.emit(FLAG, flag, int(value))

    def leave_out(self) -> None:
        super().leave_out()  # type: ignore[misc]
        self.ring.emit(LEFT_OUT)


class Session:
    """Rows of this process, for those who asked for them. ``subscribe(f)``: ``f(session, row)`` after every row."""

    def __init__(self, agent: Agent, make_recorder: Callable[[Callable[[], int]], Recorder] = Recorder) -> None:
        self.agent, self.options = agent, agent.options
        ring = self._ring = agent.ring

        def make(clock: Callable[[], int]) -> Recorder:
            # The engine's clock stops while a row is looked at: what a subscriber takes is real time.
            recorder = make_recorder(_clock)
            kind = type(recorder)
            recorder.__class__ = type(kind.__name__, (_Marked, kind), {"ring": ring})
            return recorder

        self.engine = Engine(ring.anchor_ns, _drop_row, _drop_fact, make)
        self.recorder = self.engine.recorder
        self.recorder.on_row = self._after_row
        agent.ring = LocalRing(ring, self.engine)  # type: ignore[assignment]
        agent.session = self
        self.subscribers: list[Any] = []
        self.before_end: Callable[[], None] = _nothing
        self.deep_window_ns: int | None = None
        self.ends_when_idle = False
        """For a recording that began in the middle of a training: events are replayed only while rows are wanted."""

    def reset_after_fork(self) -> None:
        """In a forked child nobody asked for anything."""
        self.subscribers.clear()
        self.before_end = _nothing

    def subscribe(self, subscriber: Any) -> None:
        self.subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Any) -> None:
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)

    def _after_row(self, row: Row[int]) -> None:
        for subscriber in tuple(self.subscribers):
            subscriber(self, row)
        if self.ends_when_idle and not self.subscribers:
            self.agent.ring, self.agent.session = self._ring, None

    def record(self, fact: dict[str, Any]) -> None:
        self.agent.tell(fact)

    record_when_started = record

    @property
    def meets_model(self) -> Callable[[Any], Any] | None:
        return self.agent.meets_model

    @meets_model.setter
    def meets_model(self, meet: Callable[[Any], Any]) -> None:
        self.agent.meets_model = meet

    @property
    def compile_used(self) -> bool:
        return self.agent.compile_used

    def steps_per_optimizer(self) -> list[int]:
        """One entry per optimizer seen so far (at least one): how many rows make a step."""
        return [1] * max(1, len(self.recorder.optimizers))

    def sharded(self) -> bool:
        return any(model.get("sharded") for model in self.engine.models())

    def local_rank(self) -> int | None:
        return facts.integer(os.environ.get("LOCAL_RANK"))

    @guarded
    def finish(self) -> None:
        """At the interpreter's exit, before the last event."""
        self.before_end()
        self.recorder.close_tail()

    def end(self) -> None:
        """A trial ends here: as at the interpreter's exit."""
        self.agent.end()


def _drop_row(row: Row[int]) -> None:
    """Rows are written by hotloop's own process."""


def _drop_fact(fact: dict[str, Any]) -> None:
    """Facts reach it as well."""


def _nothing() -> None:
    """Until something has to be done at the end."""
