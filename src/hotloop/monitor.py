"""Marks in a training loop -> where its steps go (Monitor); also ``profile`` and ``watch``, at one line each."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hotloop.agent.observe.event_pool import EventPool, cuda_event_pool
from hotloop.agent.observe.monitor_summary import MonitoredMemory, MonitorSummary, Path, ThreadPhase
from hotloop.agent.observe.profiling import profile as profile
from hotloop.agent.observe.ranks import current_rank
from hotloop.agent.observe.scalars import ScalarReader
from hotloop.agent.observe.spans import DeviceKey, SpanStack
from hotloop.agent.observe.step_totals import Series, StepRecord, StepTotals
from hotloop.core.errors import HotloopError, UsageError

if TYPE_CHECKING:
    from hotloop.core.report import Report

__all__ = ["Monitor", "MonitorSummary", "Watch", "profile", "watch"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MEMORY_INTERVAL_NS = 250_000_000
POOL_PAIRS = 256
Readings = dict[str, int | None]


class Monitor:
    """Times the phases that you mark, on the host and, where CUDA is in use, on the device's stream.

    No figure includes the first ``warmup_steps`` steps. ``device`` is found automatically when CUDA is in use; give
    ``"cpu"`` to time the host alone. Phases between two steps belong to the step that follows. Phases on other
    threads overlap with the steps and are listed apart. ``clock`` gives ns; ``write`` takes the text of ``end_epoch``
    (default: standard output).

    >>> monitor = Monitor(warmup_steps=0, device="cpu")
    >>> for _ in range(3):
    ...     with monitor.step():
    ...         with monitor.phase("data"):
    ...             batch = [1, 2, 3]
    ...         with monitor.phase("forward"):
    ...             monitor.record_metric("loss", sum(batch))
    >>> summary = monitor.summary()
    >>> [phase.path for phase in summary.phases], summary.steps_count, summary.metrics[0].last
    ([('data',), ('forward',)], 3, 6.0)
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        warmup_steps: int = 5,
        device: Any = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        write: Callable[[str], object] | None = None,
        read_memory: Callable[[], Readings] | None = None,
        event_pool: EventPool | None = None,
    ) -> None:
        if warmup_steps < 0:
            raise UsageError(f"warmup_steps is {warmup_steps}; give 0 or more")
        self.name = name
        self.warmup_steps = warmup_steps
        self._clock = clock
        self._write = write or _print
        self._read_memory = read_memory or _read_memory
        self._wanted = None if device is None else str(device)
        self._device = None if event_pool is None else (self._wanted or "cuda")
        self._pool = event_pool
        self._searching = event_pool is None and (self._wanted is None or self._wanted.startswith("cuda"))
        self._lock = threading.Lock()
        self._local = threading.local()
        self._owner = threading.get_ident()
        self._dropped_count = self._epoch = 0
        self._in_epoch, self._in_all = StepTotals(), StepTotals()
        self._threads: defaultdict[Path, Series] = defaultdict(Series)
        self._scalars = ScalarReader()
        self._memory = MonitoredMemory()
        self._memory_due_ns = 0
        self.is_compiling: Callable[[], bool] = _never
        self._owner_stack: SpanStack | None = None
        self._look_at_torch()
        _MONITORS.add(self)

    # -- marking --------------------------------------------------------------------------------------------------

    def phase(self, name: str) -> Phase:
        """A part of the step: ``with monitor.phase("forward"):`` or ``@monitor.phase("forward")``; may be nested."""
        return Phase(self, name)

    def batches(self, source: Iterable[T], name: str = "data") -> Iterator[T]:
        """The items of ``source``; waiting for each is a phase."""
        iterator = iter(source)
        while True:
            with Phase(self, name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def start_step(self) -> None:
        """Begin a step; a step that an earlier ``start_step`` began ends here."""
        stack = self._claim()
        if stack.in_step:
            self._finish(stack.end_step())
        if self._searching or self.is_compiling is _never:
            self._look_at_torch()
        stack.begin_step()

    def end_step(self) -> None:
        """End the step."""
        self._finish(self.stack().end_step())

    @contextmanager
    def step(self) -> Iterator[None]:
        """``start_step`` and ``end_step`` around a block. A step that ends with an exception is not counted."""
        stack = self._claim()
        if stack.in_step:
            raise UsageError("a step started inside a step; end the first one")
        self.start_step()
        record = stack.record
        try:
            yield
        except BaseException:
            stack.drop_step()
            self._dropped_count += 1
            raise
        if stack.record is not record:
            raise UsageError("the step of 'with monitor.step()' was ended inside it; use either 'with' or end_step()")
        self.end_step()

    def record_metric(self, name: str, value: Any) -> None:
        """Record a number, such as the loss. A tensor on a device is copied without waiting, and counted later."""
        is_there, number = self._scalars.read(name, value)
        if not is_there:
            return
        with self._lock:
            self._book_metric(name, number)
        agent = sys.modules.get("hotloop.agent.attach.agent")
        watched = None if agent is None else agent.current_agent()
        if watched is not None and number is not None:
            watched.tell({"kind": "metric", "name": name, "value": number})

    # -- reading --------------------------------------------------------------------------------------------------

    def summary(self) -> MonitorSummary:
        """All steps so far except the warm-up. May be called at any time, from any thread."""
        return self._summarize(self._in_all, None)

    def end_epoch(self) -> MonitorSummary:
        """End the epoch and return its steps; printed on rank 0. An open step ends first."""
        if self.stack().in_step:
            self.end_step()
        self._epoch += 1
        is_first = current_rank() == 0
        summary = self._summarize(self._in_epoch, self._epoch)
        with self._lock:
            self._in_epoch = StepTotals()
        if is_first:
            self._write(summary.to_text())
        return summary

    def _summarize(self, totals: StepTotals, epoch: int | None) -> MonitorSummary:
        with self._lock:
            self._collect()
            threads = ((path, series.stats()) for path, series in self._threads.items())
            return MonitorSummary(
                name=self.name,
                rank=current_rank(),
                epoch=epoch,
                steps_count=totals.steps_count + totals.warmup_count,
                warmup_count=totals.warmup_count,
                dropped_count=self._dropped_count,
                step=totals.step(),
                phases=totals.phases(),
                other_threads=tuple(ThreadPhase(path=p, time_ns=stats) for p, stats in threads if stats is not None),
                metrics=totals.metrics(),
                memory=self._memory,
                device=self._device,
                device_unknown_count=0 if self._pool is None else self._pool.unknown_count,
            )

    # -- at work --------------------------------------------------------------------------------------------------

    def stack(self) -> SpanStack:
        """The open phases of this thread."""
        found: SpanStack | None = getattr(self._local, "stack", None)
        if found is None:
            found = self._local.stack = SpanStack(self._clock, self._begin_device, self._end_device)
        return found

    def _claim(self) -> SpanStack:
        """This thread runs the steps from now on."""
        me, before = threading.get_ident(), self._owner_stack
        if me != self._owner and before is not None and before.open:
            raise UsageError("a step or phase is open on another thread; only one thread at a time can run steps")
        self._owner = me
        self._owner_stack = self.stack()
        return self._owner_stack

    def left_phase(self, stack: SpanStack) -> None:
        """After every phase: on threads other than the steps', its time is booked immediately."""
        if stack.open or threading.get_ident() == self._owner:
            return
        record, stack.record = stack.record, StepRecord()
        with self._lock:
            for path, totals in record.phases.items():
                if path:
                    self._threads[path].add(totals.total_ns / totals.calls)

    def _begin_device(self, key: Any) -> Any:
        pool = self._pool
        return None if pool is None or threading.get_ident() != self._owner else pool.begin(key)

    def _end_device(self, token: Any) -> bool:
        return self._pool is not None and self._pool.end(token)

    def _finish(self, record: StepRecord) -> None:
        now_ns = self._clock()
        with self._lock:
            if now_ns >= self._memory_due_ns:
                self._memory_due_ns = now_ns + MEMORY_INTERVAL_NS
                self._memory = MonitoredMemory(**self._read_memory())
            record.memory = self._memory
            counted_in = (self._in_epoch, self._in_all)
            if self._in_all.warmup_count < self.warmup_steps:
                for totals in counted_in:
                    totals.warmup_count += 1
            else:
                for totals in counted_in:
                    totals.add(record)
                record.counted_in = counted_in
                if self._pool is not None:
                    record.complete()
            self._collect()

    def _collect(self) -> None:
        """Collect what the device has finished; only on the steps' thread, and never waiting."""
        if threading.get_ident() != self._owner:
            return
        if self._pool is not None:
            key: DeviceKey
            for key, device_ns in self._pool.resolve():  # type: ignore[assignment]
                record, path, between = key
                record.add_device_ns(path, device_ns, between=between)
        for name, value in self._scalars.arrived():
            self._book_metric(name, value)

    def _book_metric(self, name: str, value: float | None) -> None:
        for totals in (self._in_epoch, self._in_all):
            totals.add_metric(name, value)

    def _look_at_torch(self) -> None:
        """Once torch is there: know when it compiles; once CUDA is in use: time its stream. Never initializes CUDA."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        self.is_compiling = torch.compiler.is_compiling
        if self._searching and torch.cuda.is_initialized():
            self._searching = False
            index = torch.device(self._wanted).index if self._wanted else None
            index = torch.cuda.current_device() if index is None else index
            self._device = f"cuda:{index}"
            self._pool = cuda_event_pool(index, POOL_PAIRS)

    def after_fork(self) -> None:
        """In a forked child: CUDA cannot be used there, and locks and open phases belonged to the parent."""
        self._lock = threading.Lock()
        self._local = threading.local()
        self._owner, self._owner_stack = threading.get_ident(), None
        self._pool, self._searching = None, False


class Phase(ContextDecorator):
    """The object that ``Monitor.phase`` returns: a context manager and a decorator, reusable and nestable."""

    def __init__(self, monitor: Monitor, name: str) -> None:
        self._monitor = monitor
        self._name = name

    def __enter__(self) -> Phase:
        if not self._monitor.is_compiling():  # inside torch.compile a phase is nothing at all: no break in the graph
            self._monitor.stack().begin(self._name)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._monitor.is_compiling():
            return
        stack = self._monitor.stack()
        if kind is None:
            stack.end(self._name)
        else:
            stack.unwind(self._name)
        self._monitor.left_phase(stack)

    def __call__(self, func: F) -> F:
        if inspect.isgeneratorfunction(func) or inspect.iscoroutinefunction(func):
            raise UsageError(
                f"{func.__name__} is a generator or coroutine; mark the parts inside it with 'with monitor.phase(...)'"
            )
        return super().__call__(func)


class Watch:
    """The recording of this process that ``watch`` began, or joined."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def command(self) -> str:
        """The shell command that shows the report."""
        return f"hotloop report {self.folder}"

    def report(self) -> Report:
        """The report of everything recorded so far, by all processes of the run."""
        from hotloop.agent.attach.watching import refresh

        refresh()
        try:
            from hotloop.pipeline.runs import read_report
        except ImportError as error:
            raise HotloopError(
                f"this Python has no {error.name}, which reports need; use the Python that hotloop is installed "
                f"in, or run {self.command}"
            ) from error
        return read_report(self.folder)

    def __repr__(self) -> str:
        return f"<hotloop.Watch: {self.command}>"


def watch(
    name: str | None = None,
    *,
    deep: bool = False,
    trace: str | None = None,
    trace_ranks: str = "all",
    nvtx: bool = False,
) -> Watch:
    """Observe this process's training from here on, as ``hotloop run`` does, into a folder under ``.hotloop/``.

    Call it anywhere in the script or notebook, ideally before the model, optimizer and loaders are built, so that their
    lines are known. Calling it again, or under ``hotloop run``, changes nothing and returns the same recording.
    ``trace`` ('wait:warmup:active[:repeat]'), ``trace_ranks`` and ``nvtx`` are the options of ``hotloop run``.
    """
    from hotloop.agent.attach.watching import begin_watching

    return Watch(begin_watching(name, {"deep": deep, "trace": trace, "trace_ranks": trace_ranks, "nvtx": nvtx}))


def _print(text: str) -> None:
    print(text, end="", flush=True)


def _never() -> bool:
    return False


_MONITORS: weakref.WeakSet[Monitor] = weakref.WeakSet()


def _after_fork() -> None:
    for monitor in _MONITORS:
        monitor.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _read_memory() -> Readings:
    from hotloop.agent.observe.memory_end import peak_resident_bytes
    from hotloop.agent.observe.readings import device_memory, resident_bytes

    device = device_memory() or {}
    rss_bytes, peak_bytes = resident_bytes(), peak_resident_bytes()
    return {
        "rss_bytes": rss_bytes,
        # The kernel counts the two apart, and the peak may lag behind by some pages.
        "peak_rss_bytes": None if peak_bytes is None else max(peak_bytes, rss_bytes or 0),
        "device_allocated_bytes": device.get("allocated"),
        "device_reserved_bytes": device.get("reserved"),
        "device_peak_bytes": device.get("peak"),
    }
