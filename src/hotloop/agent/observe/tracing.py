"""``--trace`` and ``--nvtx`` -> a subscriber that records Chrome traces of the planned steps, and NVTX ranges.

A step here is a row closed by the first optimizer (or by backward where there is none). The subscriber is called when
a row has closed, so that the first step it can record is the second one.

Torch's profiler belongs to the thread that started it. The process dies of a segmentation fault where it is stopped
while another thread's is on, or where its thread ends with it; a forked child keeps recording forever. So it is
stopped on its own thread only, before another one starts and at the latest when that thread ends.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hotloop.core.recording import CLOSED_BY_BACKWARD, CLOSED_BY_END, FIELD
from hotloop.core.trace_plan import (
    SAVE,
    WAIT,
    TracePlan,
    parse_trace_plan,
    parse_trace_ranks,
)

from .at_exit import run_at_exit
from .guard import guarded
from .local import Session
from .profiling import quiet_profiler, supported_activities, torch_schedule, write_trace
from .ranks import current_rank, worker_name

FIRST_STEP = 2
"""The first step that can be recorded."""
BACKWARDS_WITHOUT_OPTIMIZER = 3
"""After this many backwards without an optimizer step, every further backward is a step."""

MOST_WAIT_S = 5.0
"""How long another thread's profiler waits for the end of the step, where the current recording is stopped."""

_CLOSED_BY = FIELD["closed_by"]
_OPTIMIZER_INDEX = FIELD["optimizer_index"]


def make_tracing(options: Mapping[str, Any]) -> Tracing | None:
    """The subscriber that ``trace`` and ``trace_ranks`` of the options ask for; None where no trace is wanted.

    It is made before the process knows its rank, and looks at that when the first row has closed.
    """
    text = options.get("trace")
    if not text:
        return None
    ranks = parse_trace_ranks(options.get("trace_ranks") or "all")
    folder = os.path.join(options["run"], "traces")
    return Tracing(parse_trace_plan(text), folder, ranks)


class Tracing:
    """Called after every row on the training thread. Steps aside when anybody else's profiler starts."""

    def __init__(
        self,
        plan: TracePlan,
        folder: str,
        ranks: Collection[int] | None = None,
        steps_before: int = 0,
    ) -> None:
        """``steps_before``: steps of the training that are over when it is made in the middle of one."""
        self.plan = plan
        self._folder = folder
        self._ranks = ranks
        self._pid = 0
        self._steps = self._backwards = steps_before
        self._optimizer_seen = steps_before > 0
        self._profiler: Any = None
        self._first_recorded = 0
        self._cost_ns = 0
        self._flagged = False
        self._thread = 0
        """The thread that the profiler belongs to."""
        self._busy_thread = 0
        """The thread that is starting or stopping it at the moment."""
        self._at_thread_end: Any = None
        self._break_off = False
        self._broken_off = threading.Event()
        self._over = False
        self._foreign = False
        self._restore: Callable[[], None] = _nothing
        self._at_exit: Callable[[], None] = _nothing
        self._session: Session | None = None

    @guarded
    def __call__(self, session: Session, row: list[int]) -> None:
        if self._break_off:
            self._stop_for_others(session)
        if self._flagged and self._profiler is None:
            # The row that has just closed held the end of the last recording and the writing of its file.
            self._flagged = session.recorder.in_deep_window = False
        if row[_CLOSED_BY] == CLOSED_BY_END:
            self.finish()
            return
        if not self._pid:
            self._arrive()
        elif self._pid != os.getpid():
            self._over = True  # a forked child: what is going on is its parent's
        if self._over:
            session.unsubscribe(self)
            return
        if not self._ends_step(row):
            return
        start_ns = time.perf_counter_ns()
        ended, coming = self._steps, self._steps + 1
        if self._profiler is not None:
            with self._at_work():
                if self.plan.act_in(ended) == SAVE:
                    self._save()
                else:
                    self._profiler.step()
        if self._profiler is None and self.plan.act_in(coming) != WAIT:
            self._begin(session, coming)
        if self._profiler is not None:
            session.recorder.in_deep_window = True
        if self.plan.is_over(coming):
            self.finish()
        self._cost_ns += time.perf_counter_ns() - start_ns

    def _arrive(self) -> None:
        """The process trains: is its rank one of those wanted? From here on profilers of others are noticed."""
        self._pid = os.getpid()
        rank = current_rank()
        self._over = self._ranks is not None and rank not in self._ranks
        self._worker = worker_name(rank)
        if not self._over:
            self._restore = _watch_profilers(self._foreign_starts, self._foreign_ends)
            _stop_recording_in_children(self)

    def _ends_step(self, row: list[int]) -> bool:
        """Count the row when it closes a step: of the first optimizer, or of a training that seems to have none."""
        if row[_OPTIMIZER_INDEX] > 0:
            return False
        if row[_CLOSED_BY] == CLOSED_BY_BACKWARD:
            self._backwards += 1
            self._steps = self._backwards
            return self._backwards > BACKWARDS_WITHOUT_OPTIMIZER
        if not self._optimizer_seen:
            self._optimizer_seen = True
            if self._profiler is None:
                self._steps = 0  # these backwards were micro-batches of the first step
        self._steps += 1
        return True

    def finish(self) -> None:
        """The training or its thread ends: a recording that has begun is kept up to here.

        On another thread than the recording's, which is still running or is stuck, nothing can be done: it is lost.
        """
        if self._profiler is not None and os.getpid() == self._pid:
            if threading.get_ident() == self._thread:
                with self._at_work():
                    self._save()
            elif self._session is not None and not self._over:
                self._record(self._session, "a trace was lost: its thread did not end before the process")
        if not self._over:
            self._over = True
            self._restore()
            atexit.unregister(self._at_exit)

    def _begin(self, session: Session, step: int) -> None:
        if self.plan.act_in(step - 1) not in (WAIT, SAVE) and step != FIRST_STEP:
            return  # a cycle that another profiler interrupted: wait for the next one
        if self._foreign or session.recorder.foreign_profiler or torch._C._autograd._profiler_enabled():
            _, last = self.plan.recorded_steps((step - 1) // self.plan.cycle)
            self._record(session, f"no trace of the steps up to {last}: another profiler was running")
            return
        self._session = session
        schedule = torch_schedule(self.plan)
        self._thread = threading.get_ident()
        with self._at_work():
            activities = supported_activities()
            profiler = torch.profiler.profile(activities=activities, schedule=schedule, record_shapes=True)
            # Ranges in the file carry the numbers that hotloop gives the steps, from 1.
            profiler.schedule = lambda number: schedule(number - 1)
            profiler.step_num = step
            profiler.current_action = schedule(step - 1)
            profiler.start()
        self._profiler = profiler
        self._first_recorded = step
        self._flagged = True
        self._at_exit = run_at_exit(self.finish)
        if self._at_thread_end is None and threading.current_thread() is not threading.main_thread():
            self._at_thread_end = threading.local()
            self._at_thread_end.call = _WhenDropped(self.finish)

    def _save(self) -> None:
        profiler, self._profiler = self._profiler, None
        recorded = profiler.current_action in (
            torch.profiler.ProfilerAction.RECORD,
            torch.profiler.ProfilerAction.RECORD_AND_SAVE,
        )
        profiler.stop()
        session = self._session
        if not recorded or session is None:
            return
        start_ns = time.perf_counter_ns()
        path = write_trace(profiler, self._folder, self._worker)
        self._cost_ns += time.perf_counter_ns() - start_ns
        session.record(
            {
                "kind": "trace",
                "path": os.path.join("traces", os.path.basename(path)),
                "steps": [self.plan.recorded_steps((self._first_recorded - 1) // self.plan.cycle)[0], self._steps],
                "cost_ns": self._cost_ns,
            }
        )

    def _foreign_starts(self) -> None:
        """Somebody else starts a profiler: torch has only one, and it is theirs."""
        here = threading.get_ident()
        if self._busy_thread == here:
            return
        self._foreign = True
        if self._profiler is None or os.getpid() != self._pid:
            return
        if here == self._thread:
            self._stop_for_others(self._session)
        else:
            self._broken_off.clear()
            self._break_off = True
            if not self._broken_off.wait(MOST_WAIT_S):
                # A step that takes longer, or waits for the caller. Stopping it during theirs must never happen.
                self._break_off, self._over = False, True

    def _foreign_ends(self) -> None:
        if self._busy_thread != threading.get_ident():
            self._foreign = False

    def _stop_for_others(self, session: Session | None) -> None:
        """Stop what is being recorded, on its own thread, and keep nothing of it."""
        self._break_off = False
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            try:
                with self._at_work():
                    profiler.stop()
            finally:
                self._broken_off.set()
            if session is not None:
                self._record(session, "a trace was interrupted: another profiler started")

    def stop_in_child(self) -> None:
        """In a forked child (a loader's worker): the inherited profiler would note each operator and keep it for ever.

        It is neither stopped nor let go of, because what it refers to belongs to threads that are not here.
        """
        if self._profiler is not None:
            torch._C._autograd._enable_record_function(False)
            self._over = True

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self._busy_thread = threading.get_ident()
        try:
            with quiet_profiler():
                yield
        finally:
            self._busy_thread = 0

    def _record(self, session: Session, message: str) -> None:
        session.record({"kind": "health", "level": "info", "message": message})


def _nothing() -> None:
    return None


class _WhenDropped:
    """Calls back when it is let go of: as a value of ``threading.local``, when its thread ends, and on that thread."""

    def __init__(self, call_back: Callable[[], None]) -> None:
        self._call_back = guarded(call_back)

    def __del__(self) -> None:
        self._call_back()


def _stop_recording_in_children(tracing: Tracing) -> None:
    reference = weakref.ref(tracing)

    @guarded
    def in_child() -> None:
        found = reference()
        if found is not None:
            found.stop_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def _watch_profilers(starts: Callable[[], None], ends: Callable[[], None]) -> Callable[[], None]:
    """Call back before torch's profiler is prepared or enabled and after it is disabled; returns the undo function."""
    module = torch.autograd.profiler
    calls = {"_prepare_profiler": starts, "_enable_profiler": starts, "_disable_profiler": ends}
    originals = {name: getattr(module, name) for name in calls}

    def wrap(name: str) -> Callable[..., Any]:
        original, before = originals[name], calls[name] is starts
        call_back = guarded(calls[name])

        def run(*args: Any, **kwargs: Any) -> Any:
            if before:
                call_back()
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            call_back()
            return result

        return run

    wrapped = {name: wrap(name) for name in calls}
    for name, replacement in wrapped.items():
        setattr(module, name, replacement)

    def undo() -> None:
        for name, replacement in wrapped.items():
            if getattr(module, name) is replacement:
                setattr(module, name, originals[name])

    return undo
