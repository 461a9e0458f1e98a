"""Tasks (indices of one batch) -> batches, made by any number of worker processes or threads; grown and shrunk at work.

Every worker has a thread of this process that takes tasks for it, so that a worker is added or retired between two
tasks. A worker process has a pipe of its own: when it dies, no other worker is touched. Tensors travel in shared memory
whose names are already gone from the file system, so that nothing is left behind even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # registers how tensors are pickled
from torch import _utils as torch_utils
from torch.utils.data import _utils as data_utils

from hotloop.core.errors import UsageError

_IN_HAND_COUNT = 2
"""Tasks that a worker process has at once: one that it makes, and the next, so that it never waits for this process."""
_PLACE_BITS = 24
_WATCH_S = 2.0
"""How often an idle worker looks whether its parent still lives (the closed pipe tells it sooner, if nobody else
inherited the other end)."""
_END_S = 5.0

ExceptionWrapper: Any = torch_utils.ExceptionWrapper
_parent_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""This process's ends of all pipes: a forked worker closes its copies, which would keep the pipes open without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRecipe:
    """How batches are made. ``is_batched``: a task's indices are those of a batch, else the index of one sample."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    is_batched: bool
    init: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeCost:
    """What making one batch took, in ns. ``cpu_ns`` and ``delay_ns`` (ready, but without a core) are parts of the wall
    time of ``fetch_ns`` and ``collate_ns`` together; ``delay_ns`` is 0 where the system does not tell."""

    fetch_ns: int
    collate_ns: int
    cpu_ns: int
    delay_ns: int

    @property
    def wall_ns(self) -> int:
        return self.fetch_ns + self.collate_ns


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """``owner`` refers to the pass that takes the outcome, if it still lives; ``number`` is the batch's place in it."""

    owner: weakref.ref[Any]
    number: int
    seed: int
    indices: Any


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """A batch, or the error that its making raised (``raise_error`` raises it with the worker's traceback)."""

    batch: Any
    error: Any
    cost: MakeCost | None

    def raise_error(self) -> None:
        if isinstance(self.error, ExceptionWrapper):
            self.error.reraise()
        elif self.error is not None:
            raise self.error


class Making:
    """Makes batches in one thread, and knows which sample it is at."""

    def __init__(self, recipe: LoaderRecipe, place: Any = None) -> None:
        self._recipe = recipe
        self._place = place
        """A shared number, batch << _PLACE_BITS | place, so that the parent can tell at which sample a worker died."""
        self.at: Any = None
        self.number = 0
        """The batch's."""
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1

    def make(self, indices: Any) -> tuple[Any, MakeCost]:
        """The batch and its cost; errors of the data set and of the collate function pass through."""
        cpu_ns, delay_ns, begin_ns = time.thread_time_ns(), self._delay_ns(), time.perf_counter_ns()
        samples = self._fetch(indices)
        fetched_ns = time.perf_counter_ns()
        self.at = None
        batch = self._recipe.collate_fn(samples)
        end_ns = time.perf_counter_ns()
        cost = MakeCost(
            fetch_ns=fetched_ns - begin_ns,
            collate_ns=end_ns - fetched_ns,
            cpu_ns=time.thread_time_ns() - cpu_ns,
            delay_ns=self._delay_ns() - delay_ns,
        )
        return batch, cost

    def _fetch(self, indices: Any) -> Any:
        dataset = self._recipe.dataset
        if not self._recipe.is_batched:
            self.at = indices
            return dataset[indices]
        many = getattr(dataset, "__getitems__", None)
        if many:
            self.at = indices
            return many(indices)
        samples = []
        for place, index in enumerate(indices):
            self.at = index
            if self._place is not None:
                self._place.value = self.number << _PLACE_BITS | place
            samples.append(dataset[index])
        return samples

    def describe(self, number: int) -> str:
        return f"collate_fn of batch {number}" if self.at is None else f"sample {self.at!r} of batch {number}"

    def _delay_ns(self) -> int:
        if self._schedstat < 0:
            return 0
        try:
            return int(os.pread(self._schedstat, 64, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1


def seed_of_batch(base_seed: int, number: int) -> int:
    """The seed of a batch's draws: a mix (splitmix64, Steele et al. 2014) of the pass's seed and the batch's number."""
    mixed = (base_seed + (number + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 31)) >> 1


def seed_here(seed: int) -> None:
    """Seed the CPU generators of this process: torch, random, and numpy where it is imported."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed & 0xFFFFFFFF)


@functools.cache
def _spare_bits() -> Any:
    """A bit generator of numpy to seed in the place of the process's own; making one takes 70 us."""
    numpy: Any = sys.modules["numpy"]
    return numpy.random.MT19937(0)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The process's generators seeded meanwhile, and then as they were before."""
    state, python_state = torch.default_generator.get_state(), random.getstate()
    numpy: Any = sys.modules.get("numpy")
    bits = None
    if numpy is not None and hasattr(getattr(numpy, "random", None), "set_bit_generator"):
        bits = numpy.random.get_bit_generator()  # exchanging it is 50 times as fast as copying its state
        numpy.random.set_bit_generator(_spare_bits())
    try:
        seed_here(seed)
        yield
    finally:
        torch.default_generator.set_state(state)
        random.setstate(python_state)
        if bits is not None:
            numpy.random.set_bit_generator(bits)


class FetchPool:
    """Workers that take tasks in the order in which they were submitted.

    ``kind``: "process" or "thread". Its lock guards every field; a pass waits for ``arrived``. It does not hold the
    loader that uses it, so that this can be collected, which closes the pool.
    """

    def __init__(self, recipe: LoaderRecipe, kind: str, context: Any, finish: Callable[[Any], Any]) -> None:
        self.recipe = recipe
        self.kind = kind
        self.lock = threading.RLock()
        self.arrived = threading.Condition(self.lock)
        self.wanted = 0
        self.failure: MadeBatch | None = None
        """Why a worker could not begin."""
        self.finish = finish
        self._context = context
        self._tasks = threading.Condition(self.lock)
        self._pending: deque[Task] = deque()
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self._numbers = 0
        self._pid = os.getpid()
        self.closed = False

    # -- for the loop --------------------------------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        with self.lock:
            self._pending.append(task)
            self._tasks.notify()

    def take_back(self, task: Task) -> bool:
        """Take a task that no worker has begun; False where one has."""
        with self.lock:
            try:
                self._pending.remove(task)
            except ValueError:
                return False
            return True

    def forget(self, owner: Any) -> None:
        """Drop the tasks of a pass that was left; what is being made is thrown away when it arrives."""
        with self.lock:
            self._pending = deque(task for task in self._pending if task.owner() not in (owner, None))

    def resize(self, count: int) -> None:
        """Work with so many workers: start what is missing now, retire what is too many between two tasks."""
        with self.lock:
            self.wanted = count
            while len(self._workers) < count and not self.closed:
                self._workers.append(self._start())
            self._tasks.notify_all()

    def ready_count(self) -> int:
        """Workers that can take a task."""
        return sum(worker.is_ready for worker in self._workers)

    def alive_count(self) -> int:
        return len(self._workers)

    def staying_count(self) -> int:
        """Workers without those that will retire when they come to the end of their task."""
        with self.lock:
            return min(len(self._workers), self.wanted)

    def pids(self) -> list[int]:
        """Of the worker processes."""
        with self.lock:
            return [one.process.pid for one in self._workers if one.process is not None]

    def close(self) -> None:
        """End all workers now. A copy of the pool in a forked process has none.

        Threads are waited for, a few seconds at most: one that still runs torch's code when the interpreter ends would
        abort the process.
        """
        if os.getpid() != self._pid:
            return
        with self.lock:
            self.closed = True
            self.wanted = 0
            self._pending.clear()
            workers = list(self._workers)
            self._tasks.notify_all()
            self.arrived.notify_all()
        processes = [one.process for one in workers if one.process is not None]
        for process in processes:
            process.terminate()
        until_s = time.monotonic() + _END_S
        for process in processes:
            process.join(max(0.0, until_s - time.monotonic()))
            if process.is_alive():
                process.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until_s - time.monotonic()))

    # -- for the workers' threads --------------------------------------------------------------------------------------

    def take(self, worker: _Worker, *, wait: bool) -> Task | None:
        """The next task; None where the worker is to end, or where there is none and it does not ``wait``."""
        with self.lock:
            while True:
                if not worker.leaves and (self.closed or len(self._workers) > self.wanted):
                    self._leave(worker)
                if worker.leaves:
                    return None
                if self._pending:
                    return self._pending.popleft()
                if not wait:
                    return None
                self._tasks.wait()

    def give_back(self, tasks: list[Task]) -> None:
        with self.lock:
            self._pending.extendleft(reversed(tasks))
            self._tasks.notify_all()
            self.arrived.notify_all()

    def deliver(self, task: Task, outcome: MadeBatch) -> None:
        if outcome.error is None:
            try:
                outcome = MadeBatch(self.finish(outcome.batch), None, outcome.cost)
            except Exception as error:
                outcome = MadeBatch(None, error, outcome.cost)
        with self.lock:
            owner = task.owner()
            if owner is not None:
                owner.accept(task.number, outcome)
            self.arrived.notify_all()

    def become_ready(self, worker: _Worker) -> None:
        with self.lock:
            worker.is_ready = True
            self.arrived.notify_all()

    def fail(self, worker: _Worker, outcome: MadeBatch | None) -> None:
        """A worker is gone; ``outcome``: where it could not even begin."""
        with self.lock:
            self._leave(worker)
            if outcome is not None and not self.closed:
                self.failure = outcome
                self.wanted = 0
            self.arrived.notify_all()

    def _leave(self, worker: _Worker) -> None:
        worker.leaves, worker.is_ready = True, False
        if worker in self._workers:
            self._workers.remove(worker)
        self._tasks.notify_all()  # it may have been woken for a task that another has to take
        self.arrived.notify_all()

    def _start(self) -> _Worker:
        worker = _Worker(self, self._numbers)
        self._numbers += 1
        if self.kind == "process":
            worker.start_process(self._context)
        target = worker.drive_process if self.kind == "process" else worker.make_here
        thread = threading.Thread(target=target, name=f"hotloop-fetch-{worker.number}", daemon=True)
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        return worker


class _Worker:
    """One worker, seen from this process."""

    def __init__(self, pool: FetchPool, number: int) -> None:
        self.number = number
        self.leaves = False
        self.is_ready = False
        self.process: Any = None
        self._pool = pool
        self._pipe: Any = None
        self._place: Any = None

    def make_here(self) -> None:
        """A worker thread: it makes the batches itself."""
        pool = self._pool
        making = Making(pool.recipe)
        pool.become_ready(self)
        while (task := pool.take(self, wait=True)) is not None:
            pool.deliver(task, make_outcome(making, task))
            del task
        making.close()

    def start_process(self, context: Any) -> None:
        ours, theirs = context.Pipe(duplex=True)
        self._pipe = ours
        self._place = context.RawValue("q", 0)
        _parent_ends.add(ours)
        inherited = list(_parent_ends) if context.get_start_method() == "fork" else []
        pool = self._pool
        self.process = context.Process(
            target=serve_tasks,
            args=(theirs, inherited, pool.recipe, self.number, self._place),
            daemon=True,
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads, as torch's own workers
                self.process.start()
        except (TypeError, AttributeError, ValueError, RuntimeError, OSError) as error:
            ours.close()
            raise UsageError(
                f"a loader worker could not be started ({context.get_start_method()}): {type(error).__name__}: {error}"
                "; see whether the data set can be pickled, or set workers_kind='thread'"
            ) from error
        finally:
            theirs.close()

    def drive_process(self) -> None:
        """The thread of a worker process: tasks out, batches in."""
        pool, pipe = self._pool, self._pipe
        out: deque[Task] = deque()
        try:
            problem = pipe.recv()
            if problem is not None:
                pool.fail(self, MadeBatch(None, problem, None))
                return
            pool.become_ready(self)
            while True:
                while len(out) < _IN_HAND_COUNT and (task := pool.take(self, wait=not out)) is not None:
                    out.append(task)
                    pipe.send((task.number, task.seed, task.indices))
                if not out:
                    break
                outcome = ForkingPickler.loads(pipe.recv_bytes())
                pool.deliver(out.popleft(), MadeBatch(*outcome))
                outcome = task = None
            pipe.send(None)
            self.process.join(_END_S)
        except (EOFError, OSError):
            if not pool.closed:
                self._tell_death(out)
        finally:
            pipe.close()

    def _tell_death(self, out: deque[Task]) -> None:
        self.process.join(_END_S)
        code = self.process.exitcode
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {signal.Signals(-code).name}"
        hint = "; the system kills processes like that when memory runs out" if code == -signal.SIGKILL else ""
        pool = self._pool
        if not out:  # between two tasks: the others go on, and the pool is told to replace it
            pool.fail(
                self, None if self.is_ready else MadeBatch(None, RuntimeError(f"a loader worker ended ({how})"), None)
            )
            return
        number, place = divmod(int(self._place.value), 1 << _PLACE_BITS)
        # What was made before and not sent yet is made again by another worker, in the same way.
        task = next((one for one in out if one.number == number), out[0])
        out.remove(task)
        at = f"batch {task.number}"
        if pool.recipe.is_batched and not getattr(pool.recipe.dataset, "__getitems__", None):
            at = f"sample {task.indices[min(place, len(task.indices) - 1)]!r} of {at}"
        error = RuntimeError(f"loader worker {self.process.pid} ended ({how}) while it made {at}{hint}")
        pool.fail(self, None)
        pool.deliver(task, MadeBatch(None, error, None))
        pool.give_back(list(out))


def make_outcome(making: Making, task: Task) -> MadeBatch:
    """Make a batch in this thread; its error keeps its type and traceback, and names the sample."""
    try:
        return MadeBatch(*_with_cost(making.make(task.indices)))
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"raised for {making.describe(task.number)}")
        return MadeBatch(None, error, None)


def _with_cost(made: tuple[Any, MakeCost]) -> tuple[Any, None, MakeCost]:
    return made[0], None, made[1]


# -- in a worker process -----------------------------------------------------------------------------------------------


def serve_tasks(pipe: Connection, inherited: list[Connection], recipe: LoaderRecipe, number: int, place: Any) -> None:
    """A worker process: tasks of (number, seed, indices) in, pickled outcomes out, until None or the parent's end."""
    parent = os.getppid()
    for one in inherited:
        with contextlib.suppress(OSError):
            one.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent ends its workers
    signal.signal(signal.SIGTERM, _end_between_calls)
    torch.set_num_threads(1)
    data_utils.worker._worker_info = data_utils.worker.WorkerInfo(
        id=number, num_workers=number + 1, seed=number, dataset=recipe.dataset
    )
    problem = None
    try:
        if recipe.init is not None:
            recipe.init(number)
    except Exception:
        problem = ExceptionWrapper(where=f"in worker_init_fn of loader worker {number}")
    try:
        pipe.send(problem)
    except OSError:  # the parent is gone
        return
    if problem is not None:
        return
    making = Making(recipe, place)
    finished: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    # Large batches fill the pipe while the training computes; the worker makes the next one meanwhile.
    sender = threading.Thread(target=_send_all, args=(pipe, finished), daemon=True)
    sender.start()
    while (task := _next_task(pipe, parent)) is not None:
        finished.put(_make_bytes(making, *task))
    finished.put(None)
    sender.join()


def _end_between_calls(number: int, _frame: Any) -> None:
    """End by the signal, but never inside the call that makes shared memory, before it takes the name away again."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _next_task(pipe: Connection, parent: int) -> tuple[int, int, Any] | None:
    try:
        while not pipe.poll(_WATCH_S):
            if os.getppid() != parent:
                return None
        task: tuple[int, int, Any] | None = pipe.recv()
        return task
    except (EOFError, OSError):
        return None


def _make_bytes(making: Making, number: int, seed: int, indices: Any) -> bytes:
    seed_here(seed)
    making.number = number
    try:
        batch, cost = making.make(indices)
        return bytes(ForkingPickler.dumps((batch, None, cost)))
    except Exception:
        what = "collate_fn" if making.at is None else f"sample {making.at!r}"
        where = f"in {what} (batch {number}, loader worker {os.getpid()})"
        wrapped = ExceptionWrapper(where=where)
    try:
        return bytes(ForkingPickler.dumps((None, wrapped, None)))
    except Exception:  # an exception type that cannot be pickled
        text = f"{wrapped.exc_msg}\n{traceback.format_exc(limit=1)}"
        return bytes(ForkingPickler.dumps((None, RuntimeError(f"{where}: {text}"), None)))


def _send_all(pipe: Connection, finished: queue.SimpleQueue[bytes | None]) -> None:
    try:
        while (data := finished.get()) is not None:
            pipe.send_bytes(data)
    except OSError:  # the parent is gone
        os._exit(1)
