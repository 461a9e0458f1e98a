"""A dataset -> its samples read once and kept, as long as nothing shows that keeping them changes the training.

What cannot be proven before is watched while the training runs: a read that draws random numbers, a second read with
other bits and a dataset that the script changes each end the cache for good, in all processes that share it.

``read_through_cache`` changes only the class of a dataset, to a subclass of its own of the same name: whoever holds
the dataset, sets its attributes or asks ``isinstance`` notices nothing, and its pickles and copies are those of the
original class, without the cache.
"""

from __future__ import annotations

import copyreg
import functools
import mmap
import os
import statistics
import struct
import time
import weakref
from abc import ABCMeta
from collections.abc import Callable, Sequence
from typing import Any, Generic

from hotloop.change.apply.loader_samples import alike, fingerprint, is_trial, moved, random_states, states_of
from hotloop.change.apply.sample_store import MISSING, NotPlain, SampleStore, encode
from hotloop.change.apply.shareable import find_generators

FIRST_READS = 16
"""This many reads of each process are watched for random draws, later ones as WATCH_RATIO allows."""
WATCH_RATIO = 0.05
"""Part of the reading time that watching may take: comparing the states of all generators takes 0.2 ms."""
READ_TWICE = 4
"""This many reads of each process are made twice and compared, where nothing is kept yet to compare with."""
VERIFY_EVERY = 128
"""One hit in this many is read again, and the first, second, fourth, ... of each process."""
TIMED_READS = 8
WORTH_FACTOR = 2.0
"""Samples that are read less than this many times as slowly as they are copied out of the cache are not kept."""

CACHE = "_hotloop_cache"
_new_object = vars(copyreg)["__newobj__"]
_STATE_BYTES = 512
_PRINT = struct.Struct("<Q")
_ENDED, _HAS_ANY, _PRINT_AT, _WHY_AT = 0, 1, 8, 16


class SampleCache:
    """Keeps samples of one dataset in a store. ``take`` returns what ``read`` would, and raises nothing of its own."""

    def __init__(self, dataset: Any, store: SampleStore, kind: Any = None) -> None:
        self.kind = kind
        """The owner's name for the dataset once it is gone."""
        try:
            self._dataset: Callable[[], Any] = weakref.ref(dataset)
        except TypeError:  # such as a list
            self._dataset = lambda: dataset
        self._count = len(dataset)
        self._store: SampleStore | None = store
        self._shared = mmap.mmap(-1, _STATE_BYTES)  # for all processes: why it ended, what the dataset looks like
        self._made_by = os.getpid()
        self._kind_of_key: type | None = None
        self._begin_process()

    @property
    def why_ended(self) -> str:
        """Why samples are no longer kept; empty while they are."""
        return self._shared[_WHY_AT:].rstrip(b"\0").decode(errors="replace") if self._shared[_ENDED] else ""

    def count(self) -> int:
        """Samples that are held."""
        return 0 if self._store is None else self._store.count()

    def end(self, why: str) -> None:
        """Keep nothing any more, in any process."""
        if not self._shared[_ENDED]:
            text = why.encode(errors="replace")[: _STATE_BYTES - _WHY_AT]
            self._shared[_WHY_AT : _WHY_AT + len(text)] = text
            self._shared[_ENDED] = 1
        self.close()

    def close(self) -> None:
        """Keep nothing any more in this process."""
        self._store = None

    def take(self, keys: Sequence[Any], read: Callable[[Sequence[Any]], Any]) -> Any:
        """The samples of ``keys``: kept ones as new objects, the others by one call of ``read``."""
        store = self._store
        if store is None or is_trial():
            return read(keys)
        try:
            samples = self._find(store, keys)
        except Exception as error:
            self._give_up(error)
            samples = None
        if samples is None:
            return read(keys)
        wanted = [place for place, sample in enumerate(samples) if sample is MISSING or self._is_due()]
        if not wanted:
            return samples
        asked = keys if len(wanted) == len(keys) else [keys[place] for place in wanted]
        before = self._begin_watch()
        begun_ns = time.perf_counter_ns()
        fresh = read(asked)
        took_ns = time.perf_counter_ns() - begun_ns
        if not isinstance(fresh, list) or len(fresh) != len(wanted):
            self.end("__getitems__ does not return one sample per index of a list")
            return fresh if asked is keys else read(keys)
        try:
            self._judge(store, asked, fresh, [samples[place] for place in wanted], before, took_ns, read)
        except Exception as error:
            self._give_up(error)
        for place, sample in zip(wanted, fresh, strict=True):
            samples[place] = sample
        return samples

    # -- what may be kept ----------------------------------------------------------------------------------------------

    def _find(self, store: SampleStore, keys: Sequence[Any]) -> list[Any] | None:
        """The kept record of each key; None where nothing may be kept."""
        if self._shared[_ENDED]:
            self._store = None
            return None
        if self._pid != os.getpid():
            self._begin_process()
        elif fingerprint(self._dataset()) != self._print:
            self._begin_process(is_changed=True)
        if self._kind_of_key is None and keys:
            self._kind_of_key = type(keys[0])
        kind, count = self._kind_of_key, self._count
        is_index = kind is int or (kind is not None and kind.__module__ == "numpy" and kind.__name__.startswith("int"))
        if self._shared[_ENDED] or not is_index:
            return None
        if not all(type(key) is kind for key in keys):
            return None
        numbers = [int(key) for key in keys]
        return [store.get(one) for one in numbers] if all(0 <= one < count for one in numbers) else None

    def _begin_process(self, *, is_changed: bool = False) -> None:
        """A process's first look at the dataset, and its next where the script has changed it since the last read."""
        self._print = look = fingerprint(self._dataset())
        known = self._read_print()
        differs = is_changed or (known != 0 and known != _hash(look))
        if differs and self._shared[_HAS_ANY]:
            self.end("the script changed the dataset")
            return
        self._write_print(look)
        self._pid = os.getpid()
        self._generators = find_generators(("dataset", self._dataset()))
        self._hits = self._reads = self._watch_ns = self._read_ns = 0
        self._times: list[tuple[int, int]] = []

    def _is_due(self) -> bool:
        """Whether this hit is read again, to see that it is still the same."""
        self._hits += 1
        return self._hits & (self._hits - 1) == 0 or self._hits % VERIFY_EVERY == 0

    # -- what a read shows ---------------------------------------------------------------------------------------------

    def _begin_watch(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The states of all generators before a read, unless watching has taken its part of the time."""
        self._reads += 1
        if self._reads > FIRST_READS and self._watch_ns > WATCH_RATIO * self._read_ns:
            return None
        begun_ns = time.perf_counter_ns()
        states = random_states(), states_of(self._generators)
        self._watch_ns += time.perf_counter_ns() - begun_ns
        return states

    def _judge(
        self,
        store: SampleStore,
        keys: Sequence[Any],
        fresh: Sequence[Any],
        kept: Sequence[Any],
        before: tuple[dict[str, Any], dict[str, Any]] | None,
        took_ns: int,
        read: Callable[[Sequence[Any]], Any],
    ) -> None:
        self._read_ns += took_ns
        again = read(keys) if self._reads <= READ_TWICE and MISSING in kept else fresh
        drawn = self._end_watch(before)
        if drawn:
            self.end(f"reading a sample drew random numbers ({', '.join(sorted(drawn))})")
            return
        for key, sample, second, held in zip(keys, fresh, again, kept, strict=True):
            if not alike(sample, second) or (held is not MISSING and not alike(sample, held)):
                self.end(f"reading sample {key} twice gave different data")
                return
            if held is MISSING and not store.room.is_over:
                self._keep(store, int(key), sample, took_ns // len(keys))
        look = fingerprint(self._dataset())
        if look != self._print:  # by the read itself: a file opened at its first use
            self._print = look
            if self._pid == self._made_by:
                self._write_print(look)

    def _end_watch(self, before: tuple[dict[str, Any], dict[str, Any]] | None) -> set[str]:
        if before is None:
            return set()
        begun_ns = time.perf_counter_ns()
        own = states_of(self._generators)
        drawn = moved(before[0], random_states())
        drawn |= {name for name, state in own.items() if not alike(before[1].get(name), state)}
        self._watch_ns += time.perf_counter_ns() - begun_ns
        return drawn

    def _keep(self, store: SampleStore, key: int, sample: Any, took_ns: int) -> None:
        try:
            record = encode(sample, key)
        except NotPlain as error:
            if not self._shared[_HAS_ANY]:
                self.end(str(error))
            return
        if not store.put(key, record):
            return
        self._shared[_HAS_ANY] = 1
        if len(self._times) < TIMED_READS:
            self._time_copy(store, key, took_ns)

    def _time_copy(self, store: SampleStore, key: int, took_ns: int) -> None:
        begun_ns = time.perf_counter_ns()
        store.get(key)
        self._times.append((took_ns, time.perf_counter_ns() - begun_ns))
        if len(self._times) < TIMED_READS:
            return
        read_ns, copy_ns = (statistics.median(one) for one in zip(*self._times, strict=True))
        if read_ns < WORTH_FACTOR * copy_ns:
            self.end(f"a sample is read in {read_ns / 1e3:.0f} µs and copied from the cache in {copy_ns / 1e3:.0f} µs")

    # -- shared between the processes ----------------------------------------------------------------------------------

    def _read_print(self) -> int:
        found: int = _PRINT.unpack_from(self._shared, _PRINT_AT)[0]
        return found

    def _write_print(self, look: tuple[Any, ...]) -> None:
        _PRINT.pack_into(self._shared, _PRINT_AT, _hash(look))

    def _give_up(self, error: Exception) -> None:
        self.end(f"{type(error).__name__}: {error}")


def _hash(look: tuple[Any, ...]) -> int:
    """Hash of a fingerprint, never 0. Texts hash alike only in processes that were forked from one."""
    return (hash(look) & 0xFFFF_FFFF_FFFF_FFFF) or 1


# -- a dataset that is read through a cache ---------------------------------------------------------------------------


def find_obstacle(dataset: Any) -> str | None:
    """Why the class of this dataset cannot be changed; None where it can."""
    kind = type(dataset)
    if type(kind) not in (type, ABCMeta):
        return f"{kind.__name__} has a metaclass of its own ({type(kind).__name__})"
    for owner in kind.__mro__:
        if "__init_subclass__" in vars(owner) and owner not in (object, Generic):
            return f"{owner.__name__} is notified of its subclasses (__init_subclass__), so none can be made unnoticed"
    if not kind.__flags__ & 1 << 9:  # Py_TPFLAGS_HEAPTYPE
        return f"{kind.__name__} is a built-in class, whose instances cannot be read through a cache"
    return None


def is_read_through_cache(dataset: Any) -> bool:
    """Whether ``read_through_cache`` has changed it."""
    return hasattr(type(dataset), CACHE)


def read_through_cache(dataset: Any, cache: SampleCache) -> Callable[[], None]:
    """Let ``dataset[i]`` (and ``__getitems__``, where there is one) use the cache; returns a function that undoes it.

    Raises TypeError where Python does not let an object of this class become another.
    """
    kind: Any = type(dataset)
    mine = weakref.ref(dataset)

    @functools.wraps(kind.__getitem__)
    def __getitem__(self: Any, key: Any) -> Any:
        if self is not mine():  # another object that the script made of this class
            return kind.__getitem__(self, key)
        return cache.take((key,), lambda keys: [kind.__getitem__(self, keys[0])])[0]

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        made = kind.__reduce_ex__(self, protocol)
        if not isinstance(made, tuple):
            return made
        function, arguments, *rest = made
        arguments = tuple(kind if one is own else one for one in arguments)
        if function is _new_object:  # pickle wants the object to be of the class that this names
            function = kind.__new__
        return (function, arguments, *rest)

    namespace: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__getitem__": __getitem__,
        "__reduce_ex__": __reduce_ex__,
        CACHE: cache,
    }
    if hasattr(kind, "__getitems__"):

        @functools.wraps(kind.__getitems__)
        def __getitems__(self: Any, keys: Any) -> Any:
            if self is not mine():
                return kind.__getitems__(self, keys)
            return cache.take(keys, lambda asked: kind.__getitems__(self, asked))

        namespace["__getitems__"] = __getitems__
    own = type(kind)(kind.__name__, (kind,), namespace)
    dataset.__class__ = own
    weakref.finalize(dataset, cache.close).atexit = False

    def undo() -> None:
        cache.close()
        if type(dataset) is own:
            dataset.__class__ = kind

    return undo
