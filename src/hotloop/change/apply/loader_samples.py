"""A DataLoader -> what reading a few of its samples does, seen from a forked process that is thrown away.

The fork is what a worker would be: a read that hangs, crashes or needs the accelerator there does so in the child. Its
random draws, its caches and its prints never reach the training.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import select
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hotloop.change.apply.device_batches import leaves
from hotloop.change.apply.sample_store import NotPlain, encode
from hotloop.change.apply.shareable import find_generators

READ_BUDGET_S = 1.0
TIMEOUT_S = 10.0
SAMPLES_COUNT = 4
NEXTS_COUNT = 32
GRAIN_ELEMENTS = 32768
"""torch spreads an operator over threads from this many elements on (at::internal::GRAIN_SIZE)."""

_COPIES = (
    "view", "reshape", "alias", "clone", "copy", "cat", "stack", "slice", "select", "index", "gather", "permute",
    "transpose", "expand", "squeeze", "unsqueeze", "detach", "empty", "zeros", "ones", "full", "arange", "flip", "pad",
    "contiguous", "as_strided", "split", "unbind", "narrow", "lift", "to_copy", "fill", "set_", "t.", "select_scatter",
)  # fmt: skip
"""Operators that move numbers without computing them: threads cannot change what they give."""


_PROCESS = {"is_trial": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The effects of reading. ``draws`` and ``sampler_draws`` name the global random generators that moved."""

    draws: tuple[str, ...] = ()
    sampler_draws: tuple[str, ...] = ()
    unstable: bool = False
    """A sample that was read twice came out differently although no global generator moved."""
    changed: tuple[str, ...] = ()
    """Plain attributes of the dataset that every read sets again."""
    threaded: tuple[str, ...] = ()
    """Operators whose sums depend on how many threads compute them."""
    error: str | None = None
    batch_bytes: int | None = None
    own_draws: tuple[str, ...] = ()
    """Generators of the dataset's own that moved."""
    unplain: str | None = None
    """Why a sample has no plain record (hotloop.change.apply.sample_store)."""
    record_bytes: int | None = None
    """Mean size of a sample's plain record."""
    key_kind: str = ""
    """Class of the keys that the sampler gives."""


def read_samples(loader: Any, *, watch_operators: bool = True) -> Reads | str:
    """Read a few samples of a map-style dataset in a forked child; a text when the child gave no result.

    Without ``watch_operators`` nothing is ``threaded``, and the child saves seconds of imports.
    """
    threads = torch.get_num_threads() if watch_operators else 1
    answer = ask_forked(lambda: asdict(_read(loader, threads)), TIMEOUT_S, "reading samples")
    if isinstance(answer, str):
        return answer
    fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in answer.items()}
    return Reads(**fields)


def ask_forked(work: Callable[[], Any], limit_s: float, what: str) -> Any:
    """The result of ``work()`` in a forked process that is thrown away, as JSON; a text where it returned none."""
    if not hasattr(os, "fork") or sys.platform != "linux":
        return f"this system cannot fork a process safely, so {what} cannot be tried"
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks with threads around; a loader's workers are just that
        child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            begin_trial(limit_s)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(_try(work, what)).encode())
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(writing)
    try:
        data = _receive(reading, limit_s)
    finally:
        os.close(reading)
        status = _reap(child)
    if data is None:
        return f"{what} in a forked process did not finish within {limit_s:g} s"
    if not data:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        return f"a forked process crashed while {what} ({how})"
    return json.loads(data)


def is_trial() -> bool:
    """Whether this process only tries reading samples, so that nothing may be kept for the training."""
    return _PROCESS["is_trial"]


def random_states() -> dict[str, Any]:
    """The state of every global random generator; numpy's only where something else has imported numpy."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = (kind, keys.tobytes(), *rest)
    return states


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Names of the generators that drew between two snapshots."""
    found = {name for name in ("random", "numpy") if name in before and before[name] != after[name]}
    return found | ({"torch"} if not torch.equal(before["torch"], after["torch"]) else set())


def states_of(generators: Mapping[str, Any]) -> dict[str, Any]:
    """The state of each random generator, comparable by ``alike``.

    >>> one = {"own": random.Random(1)}
    >>> before = states_of(one)
    >>> alike(before, states_of(one)), one["own"].random() < 2, alike(before, states_of(one))
    (True, True, False)
    """
    return {name: _state_of(generator) for name, generator in generators.items()}


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def fingerprint(dataset: Any) -> tuple[Any, ...]:
    """Signs that a dataset was changed: identities and plain values of its attributes, to a small depth.

    An element that is replaced inside a list, and a numpy array that is written to, do not show.
    """
    found: list[Any] = []
    _describe(dataset, "", found, 3)
    return tuple(found)


def changed_names(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[str, ...]:
    """Names of plain attributes (numbers, texts) whose value differs between two fingerprints."""
    plain = (int, float, str, bool)
    old = {name: value for name, value in before if isinstance(value, plain)}
    return tuple(
        sorted(name for name, value in after if isinstance(value, plain) and name in old and old[name] != value)
    )


def _describe(thing: Any, path: str, found: list[Any], depth: int) -> None:
    try:
        attributes = vars(thing)
    except TypeError:
        return
    for name, value in list(attributes.items())[:32]:
        if len(found) >= 96:
            return
        where = f"{path}{name}"
        if value is None or isinstance(value, (bool, int, float, str)):
            found.append((where, value))
        elif isinstance(value, torch.Tensor):
            found.append((where, (id(value), value._version)))
        elif isinstance(value, (list, dict, set, tuple)):
            found.append((where, (id(value), len(value))))
        else:
            found.append((where, (id(value),)))
            if depth > 1 and not isinstance(value, (type, types.FunctionType, types.ModuleType)):
                _describe(value, f"{where}.", found, depth - 1)


# -- in the child -----------------------------------------------------------------------------------------------------


def begin_trial(limit_s: float) -> None:
    """Make this forked process report to nobody and end by itself: see ``is_trial``."""
    _PROCESS["is_trial"] = True
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(int(limit_s) + 5)  # it ends also when the training died meanwhile
    torch.set_num_threads(1)


def _try(work: Callable[[], Any], what: str) -> Any:
    try:
        return work()
    except Exception as error:
        return f"{what} failed: {type(error).__name__}: {str(error)[:200]}"


def _read(loader: Any, threads: int) -> Reads:
    try:
        keys, sampler_draws = _take_keys(loader)
        return _read_keys(loader, keys, sampler_draws, threads)
    except Exception as error:
        return Reads(error=f"{type(error).__name__}: {str(error)[:300]}")


def _take_keys(loader: Any) -> tuple[list[Any], set[str]]:
    """The first batches' keys, and which global generators the sampler uses beyond its first draw."""
    begun = random_states()
    indices = iter(loader._index_sampler)
    draws = moved(begun, random_states())
    taken = [next(indices)]
    until = time.monotonic() + 0.25 * READ_BUDGET_S
    before = random_states()
    for _ in range(NEXTS_COUNT):
        if time.monotonic() > until:
            break
        try:
            taken.append(next(indices))
        except StopIteration:
            break
    return taken, draws | moved(before, random_states())


def _read_keys(loader: Any, taken: list[Any], sampler_draws: set[str], threads: int) -> Reads:
    dataset, batched = loader.dataset, loader._auto_collation
    keys = [key for batch in taken for key in batch] if batched else taken
    batch_count = len(taken[0]) if batched else 1
    many = getattr(dataset, "__getitems__", None) if batched else None

    def read(key: Any) -> Any:
        return many([key])[0] if many is not None else dataset[key]

    draws: set[str] = set()
    own = find_generators(("dataset", dataset))
    own_before = states_of(own)
    unstable = False
    samples: list[Any] = []
    changes: list[set[str]] = []
    until = time.monotonic() + READ_BUDGET_S
    for key in keys[:SAMPLES_COUNT]:
        before, look = random_states(), fingerprint(dataset)
        sample = read(key)
        between = random_states()
        draws |= moved(before, between)
        changes.append(set(changed_names(look, fingerprint(dataset))))
        again = read(key)
        drawn = moved(between, random_states())
        draws |= drawn
        if not drawn and not alike(sample, again):
            unstable = True
        samples.append(again)
        if time.monotonic() > until:
            break
    own_draws = {name for name, state in states_of(own).items() if not alike(own_before[name], state)}
    unplain, record_bytes = _record(samples)
    before = random_states()
    batch = loader.collate_fn(samples if batched else samples[0])
    draws |= moved(before, random_states())
    problem = _hand_over(batch)
    tensors = [one for one in leaves(batch) if isinstance(one, torch.Tensor)]
    if any(one.device.type != "cpu" for one in tensors):
        problem = "its batches contain tensors on an accelerator"
    size = sum(one.numel() * one.element_size() for one in tensors)
    return Reads(
        draws=tuple(sorted(draws)),
        sampler_draws=tuple(sorted(sampler_draws)),
        unstable=unstable,
        changed=tuple(sorted(set.intersection(*changes[1:]))) if len(changes) > 1 else (),
        threaded=_threaded_operators(lambda: loader.collate_fn([read(key) for key in keys[: len(samples)]]), batched)
        if threads > 1
        else (),
        error=problem,
        batch_bytes=size * batch_count // max(1, len(samples)) if batched else size,
        own_draws=tuple(sorted(own_draws)),
        unplain=unplain,
        record_bytes=record_bytes,
        key_kind=type(keys[0]).__name__ if keys else "",
    )


def _record(samples: list[Any]) -> tuple[str | None, int | None]:
    try:
        sizes = [len(encode(sample, 0)) for sample in samples]
    except NotPlain as error:
        return str(error), None
    return None, sum(sizes) // len(sizes) if sizes else None


def _hand_over(batch: Any) -> str | None:
    """Why a worker could not send this batch. Torch's queue would print a traceback and wait for ever."""
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.dumps(batch)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        return f"its batches cannot be sent from a worker ({type(error).__name__}: {str(error)[:200]})"
    return None


def _threaded_operators(read: Any, batched: bool) -> tuple[str, ...]:
    """Operators of one read that compute on more numbers than one thread takes, so that sums may be ordered anew."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found: set[str] = set()

    class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func).removeprefix("aten.")
            if not name.startswith(_COPIES):
                for one in leaves(args):
                    if isinstance(one, torch.Tensor) and one.is_floating_point() and _is_large(name, one):
                        found.add(name.partition(".")[0])
            return func(*args, **(kwargs or {}))

    if not batched:
        return ("it reads without batches",)
    try:
        with OperatorWatch():  # type: ignore[no-untyped-call]
            read()
    except Exception as error:  # what cannot be watched is not known to be the same
        return (f"unknown: {type(error).__name__}",)
    return tuple(sorted(found))


def _is_large(name: str, tensor: torch.Tensor) -> bool:
    products = ("mm", "bmm", "addmm", "convolution", "matmul", "linear", "dot", "mv", "linalg", "_fft", "conv")
    return tensor.numel() >= GRAIN_ELEMENTS or name.startswith(products)


def alike(a: Any, b: Any) -> bool:
    """Whether two reads of a sample have equal bits. What cannot be compared counts as equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.layout != torch.strided:
            return bool(a.shape == b.shape and a.dtype == b.dtype)
        return torch.equal(_bytes_of(a), _bytes_of(b)) if a.numel() else True
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == b or (a != a and b != b)
    if isinstance(a, (int, str, bytes)):
        return bool(a == b)
    if hasattr(a, "tobytes") and hasattr(a, "dtype"):
        same: bool = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return same
    return True


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


# -- in the training --------------------------------------------------------------------------------------------------


def _receive(descriptor: int, limit_s: float) -> bytes | None:
    """All that the child writes; None when it is silent for too long."""
    pieces: list[bytes] = []
    until = time.monotonic() + limit_s
    while True:
        left_s = until - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return None
        pieces.append(os.read(descriptor, 65536))
        if not pieces[-1]:
            return b"".join(pieces)


def _reap(child: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)  # it has replied, or never will
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:  # the script reaps its children itself
        return 0
