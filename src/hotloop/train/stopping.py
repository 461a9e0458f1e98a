"""SIGTERM or SIGUSR1 on any rank -> all ranks stop after the same step.

Handlers only note the signal. On several ranks, the notes are compared by an all_reduce on the CPU that begins at one
check and read at the next, so nobody waits for it; checks are about a second apart, at the same steps on every rank.
"""

from __future__ import annotations

import functools
import multiprocessing.sharedctypes
import multiprocessing.util
import os
import signal
import threading
import time
from collections.abc import Callable
from ctypes import c_bool
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_APART_NS = 1_000_000_000
_MOST_STEPS = 1000


def keep_from_signals(loader: DataLoader[Any]) -> None:
    """Let the loader's future workers outlive a signal that asks this process to stop after its step.

    torchrun signals the entire process group of a rank, and Slurm every process of the job when it queues the job
    again; a worker that ends immediately is an error in the rank before it has saved. So workers get a group of their
    own and stay until the rank exits or is gone.
    """
    if not isinstance(loader.worker_init_fn, _UntilTheRankEnds):
        loader.worker_init_fn = _UntilTheRankEnds(loader.worker_init_fn, _exit_flag())


@functools.cache
def _exit_flag() -> Any:
    """Shared with the workers: whether this process exits. Set before multiprocessing terminates its children."""
    flag = multiprocessing.sharedctypes.RawValue(c_bool, False)
    multiprocessing.util.Finalize(None, setattr, (flag, "value", True), exitpriority=100)
    return flag


class _UntilTheRankEnds:
    """A worker_init_fn around the script's own; a class, so that it can be passed to workers started by spawn."""

    def __init__(self, inner: Callable[[int], None] | None, exits: Any) -> None:
        self._inner = inner
        self._exits = exits

    def __call__(self, worker_id: int) -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        rank = os.getppid()

        def end(*_: object) -> None:
            if self._exits.value or os.getppid() != rank:
                os._exit(0)

        signal.signal(signal.SIGTERM, end)
        if self._inner is not None:
            self._inner(worker_id)


class StopWatch:
    """A context that notes signals; ``check`` returns the signal that all ranks have agreed to stop for."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.noted = 0
        self._before: dict[signal.Signals, Any] = {}
        self._asked: tuple[Any, torch.Tensor] | None = None
        self._since_ns = 0

    def __enter__(self) -> StopWatch:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            for one in SIGNALS:
                self._before[one] = signal.signal(one, self._note)
        self._since_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        if self._asked is not None:
            self._asked[0].wait()
            self._asked = None
        for one, handler in self._before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.noted = self.noted or number

    def check(self, steps: int) -> tuple[int, int]:
        """The agreed signal (0: none), and the number of steps until the next check.

        ``steps`` were made since the last check. All ranks call it after the same steps.
        """
        if self._group is None:
            return self.noted, 1
        now_ns = time.perf_counter_ns()
        step_ns, self._since_ns = (now_ns - self._since_ns) / max(1, steps), now_ns
        agreed, apart = 0, 1
        if self._asked is not None:
            work, answer = self._asked
            work.wait()
            agreed, slowest_ns = int(answer[0]), float(answer[1])
            apart = max(1, min(_MOST_STEPS, int(_APART_NS / max(1.0, slowest_ns))))
        vote = torch.tensor([self.noted, step_ns], dtype=torch.float64)
        self._asked = (dist.all_reduce(vote, dist.ReduceOp.MAX, group=self._group, async_op=True), vote)
        return agreed, apart
