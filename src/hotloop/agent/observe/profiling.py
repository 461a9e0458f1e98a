"""Options -> torch.profiler around a block, with a stated plan, one trace file per rank and cycle, and tables."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.trace_plan import RECORD, SAVE, WAIT, WARMUP, TracePlan

from .ranks import current_rank, worker_name

SORT_KEYS = {
    "device_time": ("device_time_total", "cuda_time_total"),
    "self_device_time": ("self_device_time_total", "self_cuda_time_total"),
    "cpu_time": ("cpu_time_total",),
    "self_cpu_time": ("self_cpu_time_total",),
    "device_memory": ("device_memory_usage", "cuda_memory_usage"),
    "self_device_memory": ("self_device_memory_usage", "self_cuda_memory_usage"),
    "cpu_memory": ("cpu_memory_usage",),
    "self_cpu_memory": ("self_cpu_memory_usage",),
    "count": ("count",),
}
"""The keys that ``table`` sorts by, and torch's past and present names for them. ``self_memory`` is that of the device
where the tensors are."""


class profile:
    """torch.profiler around a block; call ``step()`` at the end of every step.

    ``activities``: 'cpu', 'cuda', 'xpu' or torch's own values (default: the CPU, and CUDA or XPU where there is one).
    The plan: ``skip_first`` steps, then ``repeat`` times (0: again and again) ``wait`` steps off, ``warmup`` steps
    thrown away, ``active`` steps recorded. Without ``active`` all of the block is recorded. ``schedule`` takes a torch
    schedule instead. ``folder`` gets ``<worker>.<time>.pt.trace.json`` (``.gz`` with ``gzip``) for every recording,
    as TensorBoard reads it; the default worker name holds rank, host and pid. ``on_trace_ready(this)`` is called after.

    >>> with profile(activities=["cpu"], wait=1, active=2, write=lambda text: None) as prof:
    ...     for _ in range(3):
    ...         prof.step()
    >>> prof.recordings_count
    1
    """

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        wait: int = 0,
        warmup: int = 0,
        active: int | None = None,
        repeat: int = 1,
        skip_first: int = 0,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        folder: str | os.PathLike[str] | None = None,
        worker: str | None = None,
        gzip: bool = False,
        write: Callable[[str], object] | None = None,
    ) -> None:
        import torch.profiler

        if active is None and (wait or warmup or skip_first or repeat != 1):
            raise UsageError("wait, warmup, repeat and skip_first need active: how many steps to record")
        if active is not None and schedule is not None:
            raise UsageError("give the plan either as wait, warmup, active and repeat, or as schedule")
        self.plan = (
            None
            if active is None
            else TracePlan(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
        )
        self.trace_files: tuple[str, ...] = ()
        self.recordings_count = 0
        self._write = write
        self._folder = None if folder is None else os.fspath(folder)
        self._worker = worker
        self._gzip = gzip
        self._on_trace_ready = on_trace_ready
        self._recorded: Any = None
        self._profile_memory = profile_memory
        self._record_shapes = record_shapes
        self._with_stack = with_stack
        chosen = _activities(activities)
        self._on_device = any(activity != torch.profiler.ProfilerActivity.CPU for activity in chosen)
        self.torch_profiler = torch.profiler.profile(
            activities=chosen,
            schedule=schedule if self.plan is None else torch_schedule(self.plan),
            on_trace_ready=self._ready,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
        )

    def __enter__(self) -> profile:
        if self.plan is not None and current_rank() == 0:
            text = f"hotloop: the profiler {self.plan.describe()}\n"
            (self._write or sys.stderr.write)(text)
        with quiet_profiler():
            self.torch_profiler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with quiet_profiler():
            self.torch_profiler.stop()

    def step(self) -> None:
        """A step of the training has ended."""
        from torch.profiler import ProfilerAction

        now = self.torch_profiler.current_action
        following = self.torch_profiler.schedule(self.torch_profiler.step_num + 1)
        if now == following and following != ProfilerAction.RECORD_AND_SAVE:
            self.torch_profiler.step()
            return
        with quiet_profiler():
            self.torch_profiler.step()

    def table(
        self, sort_by: str | None = None, rows: int = 20, *, by_shape: bool = False, by_stack_frames: int = 0
    ) -> str:
        """Operators of the newest recording, largest first. ``sort_by``: one of SORT_KEYS or 'self_memory'.

        The default is 'self_device_time', or 'self_cpu_time' where no device was recorded.
        """
        key = sort_by or ("self_device_time" if self._on_device else "self_cpu_time")
        if key == "self_memory":
            key = "self_device_memory" if self._on_device else "self_cpu_memory"
        if key not in SORT_KEYS:
            raise UsageError(f"sort_by {sort_by!r} is not known; known: {', '.join(SORT_KEYS)}, self_memory")
        if "memory" in key and not self._profile_memory:
            raise UsageError(f"sorting by {sort_by} needs profile(profile_memory=True)")
        if "device" in key and not self._on_device:
            raise UsageError(f"sorting by {sort_by} needs a device, but only the CPU was recorded; use {_cpu(key)}")
        if by_shape and not self._record_shapes:
            raise UsageError("a table by shape needs profile(record_shapes=True)")
        if by_stack_frames and not self._with_stack:
            raise UsageError("a table by stack needs profile(with_stack=True)")
        if not self.recordings_count:
            raise UsageError("nothing has been recorded yet: the steps to record have not ended")
        averages = self._recorded.key_averages(group_by_input_shape=by_shape, group_by_stack_n=by_stack_frames)
        if not averages:
            return "no operator was recorded\n"
        known = next((name for name in SORT_KEYS[key] if getattr(averages[0], name, None) is not None), None)
        if known is None:
            raise UsageError(f"this torch cannot sort by {sort_by}")
        text: str = averages.table(sort_by=known, row_limit=rows)
        return text

    def _ready(self, profiler: Any) -> None:
        self.recordings_count += 1
        self._recorded = profiler.profiler  # the next cycle gets another one
        if self._folder is not None:
            name = self._worker or worker_name(current_rank())
            self.trace_files += (write_trace(profiler, self._folder, name, gzip=self._gzip),)
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """Around a change of the profiler's state: without its warning about cycles.

    Torch warns that a new cycle forgets the last one; every cycle has been written or read by then.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        yield


def torch_schedule(plan: TracePlan) -> Callable[[int], Any]:
    """The plan as torch wants it: number of a step, from 0 -> ProfilerAction."""
    from torch.profiler import ProfilerAction

    actions = {
        WAIT: ProfilerAction.NONE,
        WARMUP: ProfilerAction.WARMUP,
        RECORD: ProfilerAction.RECORD,
        SAVE: ProfilerAction.RECORD_AND_SAVE,
    }
    return lambda step: actions[plan.act_in(step + 1)]


def write_trace(profiler: Any, folder: str, worker: str, *, gzip: bool = False) -> str:
    """Write a Chrome trace of a stopped profiler, named as TensorBoard's handler names it; returns its path."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if gzip else ''}")
    profiler.export_chrome_trace(path)
    return path


def supported_activities() -> list[Any]:
    """Torch's values for the CPU and for CUDA or XPU where there is one."""
    import torch.profiler

    there = torch.profiler.supported_activities()  # type: ignore[no-untyped-call, unused-ignore]
    names = ("CPU", "CUDA", "XPU")
    wanted = (getattr(torch.profiler.ProfilerActivity, name, None) for name in names)
    return [one for one in wanted if one in there]


def _activities(wanted: Iterable[Any] | None) -> list[Any]:
    from torch.profiler import ProfilerActivity

    supported = supported_activities()
    if wanted is None:
        return supported
    chosen = []
    for one in wanted:
        if isinstance(one, str):
            named = getattr(ProfilerActivity, one.upper(), None)
            if named is None:
                raise UsageError(f"activity {one!r} is not known; give 'cpu', 'cuda' or 'xpu'")
            if named not in supported:
                raise UsageError(f"activity {one!r} cannot be recorded: this torch build does not support the device")
            chosen.append(named)
        else:
            chosen.append(one)
    if not chosen:
        raise UsageError("activities is empty; give 'cpu', 'cuda' or both, or omit it")
    return chosen


def _cpu(key: str) -> str:
    return key.replace("device", "cpu")
