"""A way to build a training step -> the batch size at which a sample costs least, tried in processes of their own."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from hotloop.core.errors import HotloopError

SLOWER_RATIO = 1.05
"""A size this much slower per sample than the best one so far counts as slower; less is noise."""

Build = Callable[[], Callable[[Any], Any]]
BatchOf = Callable[[int], Any]


class BatchSizeError(HotloopError):
    """A trial failed for another reason than memory, or no size fits. The text holds what the child process said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTrial:
    """One batch size that was tried. ``outcome``: 'fits', 'out-of-memory', 'crashed' or 'too-slow'.

    ``step_ns``: shortest of the timed steps; with several ranks that of the slowest rank. ``peak_bytes``: largest
    memory of the trial's process, the accelerator's where there is one. Both are None where the size does not fit.
    """

    size: int
    outcome: str
    step_ns: int | None = None
    peak_bytes: int | None = None
    detail: str = ""

    @property
    def sample_ns(self) -> float | None:
        return None if self.step_ns is None else self.step_ns / self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The answer. ``size`` costs least per sample; ``largest`` is the largest size that fits (of those tried)."""

    size: int
    largest: int
    trials: tuple[SizeTrial, ...]

    def __str__(self) -> str:
        lines = ["  size  outcome          ms/step  us/sample       MiB"]
        for one in self.trials:
            is_timed = one.step_ns is not None
            times = f"{(one.step_ns or 0) / 1e6:9.2f}  {(one.sample_ns or 0) / 1e3:9.1f}" if is_timed else " " * 20
            memory = "" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:8.0f}"
            lines.append(f"{one.size:6d}  {one.outcome:<14}{times}  {memory}  {one.detail}".rstrip())
        return "\n".join([*lines, f"fastest per sample: {self.size}; largest that fits: {self.largest}"])


def find_batch_size(
    build: Build,
    batch_of: BatchOf,
    *,
    least: int = 1,
    most: int = 4096,
    steps: int = 5,
    timeout_s: float = 300.0,
    group: Any = None,
) -> BatchSize:
    """The batch size that costs least time per sample, from sizes doubled from ``least`` to ``most``.

    ``build()`` answers a function that does one training step on a batch; ``batch_of(size)`` answers a batch. Both run
    in a fresh process for each size (started by spawn: define them at the top of a module, and guard the script with
    ``if __name__ == "__main__"``), so that a size that does not fit, even one for which the system kills the process,
    is a result. Call it before the model is on the device: what this process holds is missing to the trials.

    A size gets two steps to warm up and ``steps`` timed ones. Doubling ends at the first size that does not fit (then
    the middle between it and the last one is tried), and after two sizes in a row that are slower per sample than the
    best. Where a process group exists, all its ranks call this at the same time: a size fits when it fits on every
    rank, and is as slow as on the slowest.

    Raises BatchSizeError with the child's traceback for any other failure, and when ``least`` does not fit.
    """
    if not 1 <= least <= most:
        raise BatchSizeError(f"least={least}, most={most}; give 1 <= least <= most")
    if steps < 1:
        raise BatchSizeError(f"steps={steps}; give at least 1")
    trials: list[SizeTrial] = []

    def run(size: int) -> SizeTrial:
        trial = _agree(_try_size(build, batch_of, size, steps, timeout_s), group)
        if trial.outcome == "error":
            raise BatchSizeError(
                f"a step with batch size {size} failed, but not because memory ran out:\n{trial.detail}"
            )
        trials.append(trial)
        return trial

    for size in _doubled(least, most):
        if run(size).outcome != "fits":
            before = size // 2
            if before >= least and (size + before) // 2 not in (size, before):
                run((size + before) // 2)
            break
        if _grows_slower(trials):
            break
    fitting = [one for one in trials if one.sample_ns is not None]
    if not fitting:
        raise BatchSizeError(f"batch size {least} does not fit: {trials[0].outcome} ({trials[0].detail})")
    best = min(fitting, key=lambda one: one.sample_ns or 0.0)
    trials.sort(key=lambda one: one.size)
    return BatchSize(size=best.size, largest=max(one.size for one in fitting), trials=tuple(trials))


def _doubled(least: int, most: int) -> Iterator[int]:
    size = least
    while size < most:
        yield size
        size *= 2
    if size == most:
        yield size


def _grows_slower(trials: list[SizeTrial]) -> bool:
    costs = [one.sample_ns for one in trials if one.sample_ns is not None]
    return len(costs) >= 3 and min(costs[-2:]) > SLOWER_RATIO * min(costs[:-2])


def _try_size(build: Build, batch_of: BatchOf, size: int, steps: int, timeout_s: float) -> SizeTrial:
    """One trial in its own process. ``outcome`` 'error' carries the child's traceback."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    try:
        functions = pickle.dumps((build, batch_of))
        arguments = (sending, functions, size, steps, _device_index())
        child = context.Process(target=_run_child, args=arguments, daemon=False)
        child.start()
    except Exception as error:  # functions that do not pickle, no memory for a process
        receiving.close()
        return SizeTrial(size=size, outcome="error", detail=f"{type(error).__name__}: {error}")
    finally:
        sending.close()
    answer: SizeTrial | None = None
    try:
        if receiving.poll(timeout_s):
            answer = receiving.recv()
        else:
            child.kill()
            answer = SizeTrial(size=size, outcome="too-slow", detail=f"no answer within {timeout_s:g} s")
    except EOFError:
        answer = None
    finally:
        receiving.close()
        child.join()
    return answer or _how_it_ended(size, child.exitcode)


def _how_it_ended(size: int, exit_code: int | None) -> SizeTrial:
    """A child that ended without an answer: killed for memory, crashed, or never begun."""
    if exit_code == -signal.SIGKILL:
        return SizeTrial(size=size, outcome="out-of-memory", detail="killed by SIGKILL")
    if exit_code is not None and exit_code < 0:
        return SizeTrial(size=size, outcome="crashed", detail=f"ended by {signal.Signals(-exit_code).name}")
    return SizeTrial(
        size=size,
        outcome="error",
        detail=f"the trial's process exited with code {exit_code} without a result; see its output above. It imports "
        'the script again; guard the script with `if __name__ == "__main__"`',
    )


def _device_index() -> int | None:
    """The GPU that this process trains on, for its trials; None where there is none or nothing tells which."""
    module = _gpu_module()
    if module is None:
        return None
    if module.is_initialized():
        return int(module.current_device())
    local_rank = os.environ.get("LOCAL_RANK", "")
    in_group = dist.is_available() and dist.is_initialized()
    return int(local_rank) if in_group and local_rank.isdigit() else None


def _run_child(sending: Any, functions: bytes, size: int, steps: int, device_index: int | None) -> None:
    try:
        if device_index is not None and device_index < torch.accelerator.device_count():
            torch.accelerator.set_device_index(device_index)
        build, batch_of = pickle.loads(functions)  # our own parent wrote them
        sending.send(_time_steps(build, batch_of, size, steps))
    except Exception as error:
        where = memory_that_lacked(error)
        if where is not None:
            text = str(error).strip().splitlines() or [type(error).__name__]
            sending.send(SizeTrial(size=size, outcome="out-of-memory", detail=f"{where}: {text[0][:200]}"))
        else:
            sending.send(SizeTrial(size=size, outcome="error", detail=traceback.format_exc()))


def memory_that_lacked(error: BaseException) -> str | None:
    """'device' or 'host' for an out-of-memory error, None for any other."""
    if isinstance(error, torch.OutOfMemoryError):
        return "device"
    if isinstance(error, MemoryError):
        return "host"
    text = str(error).lower()
    if isinstance(error, OSError):
        return "host" if error.errno == errno.ENOMEM else None
    if isinstance(error, RuntimeError):
        if "defaultcpuallocator" in text or "cannot allocate memory" in text:
            return "host"
        if "out of memory" in text or "cublas_status_alloc_failed" in text:
            return "device"
    return None


def _time_steps(build: Build, batch_of: BatchOf, size: int, steps: int) -> SizeTrial:
    step, batch = build(), batch_of(size)
    times_ns = []
    for i in range(steps + 2):
        _wait_for_device()
        start_ns = time.perf_counter_ns()
        step(batch)
        _wait_for_device()
        if i >= 2:
            times_ns.append(time.perf_counter_ns() - start_ns)
    return SizeTrial(size=size, outcome="fits", step_ns=min(times_ns), peak_bytes=_peak_bytes())


def _wait_for_device() -> None:
    """For every device that holds something of this process: ``build`` may have chosen another than the current one."""
    used = _used_gpus()
    for index in used:
        torch.accelerator.synchronize(index)
    if not used and torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _gpu_module() -> Any:
    """``torch.cuda`` (ROCm too) or ``torch.xpu`` where there is such a device; else None. MPS counts no peak."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    module = None if kind is None else torch.get_device_module(kind)
    return module if hasattr(module, "max_memory_reserved") else None


def _used_gpus() -> list[int]:
    """Indices of the GPUs on which this process holds memory; asking does not begin to use one."""
    module = _gpu_module()
    return [] if module is None else [i for i in range(module.device_count()) if module.memory_reserved(i) > 0]


def _peak_bytes() -> int:
    module = _gpu_module()
    if module is not None:
        return max((int(module.max_memory_reserved(index)) for index in _used_gpus()), default=0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _agree(trial: SizeTrial, group: Any) -> SizeTrial:
    """The trial as all ranks see it: it fits where it fits everywhere, and takes as long as on the slowest."""
    if not (dist.is_available() and dist.is_initialized()):
        return trial
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, trial, group=group)
    return agree_on(gathered)


def agree_on(trials: list[SizeTrial]) -> SizeTrial:
    """One trial for those of all ranks: the worst outcome, the slowest step, the largest memory."""
    order = ("error", "crashed", "out-of-memory", "too-slow", "fits")
    worst_rank = min(range(len(trials)), key=lambda rank: order.index(trials[rank].outcome))
    worst = trials[worst_rank]
    if worst.outcome != "fits":
        return replace(worst, detail=f"rank {worst_rank}: {worst.detail}")
    return replace(
        worst,
        step_ns=max(one.step_ns or 0 for one in trials),
        peak_bytes=max(one.peak_bytes or 0 for one in trials),
    )
