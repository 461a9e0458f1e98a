"""An object -> what in it a forked process must not share, and whether it uses a worker's number."""

from __future__ import annotations

import io
import random
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

MOST_OBJECTS = 5000
MOST_ITEMS = 64
"""Only the first items of a longer list or dictionary are looked at."""

_HANDLES = {
    "h5py": "an open HDF5 file",
    "lmdb": "an open LMDB environment",
    "sqlite3": "an open SQLite connection",
    "_sqlite3": "an open SQLite connection",
    "socket": "a socket",
    "_socket": "a socket",
    "psycopg": "a database connection",
    "psycopg2": "a database connection",
    "pymysql": "a database connection",
    "redis": "a network connection",
    "pymongo": "a network connection",
    "grpc": "a network connection",
    "leveldb": "an open LevelDB",
    "plyvel": "an open LevelDB",
    "rocksdb": "an open RocksDB",
    "tables": "an open HDF5 file",
    "netCDF4": "an open NetCDF file",
}
"""Root modules whose objects keep a connection or a file position that a fork would share."""

_PLAIN = (int, float, complex, str, bytes, bytearray, bool, type(None), type, types.ModuleType)


def find_unshareable(*roots: tuple[str, Any]) -> str | None:
    """The first thing found that breaks when forked processes use it, with its name; None when none was found.

    ``roots`` are (name, object). Attributes, items, closures and the globals that their functions name are followed.
    """
    for name, thing in _reach(roots):
        problem = _problem(thing)
        if problem is not None:
            return f"{name} is {problem}"
    return None


def find_generators(*roots: tuple[str, Any]) -> dict[str, Any]:
    """The random generators that belong to the roots or that their functions name, by name; not the global ones.

    ``roots`` as for ``find_unshareable``: generators of Python, torch and numpy are known.
    """
    return {name: thing for name, thing in _reach(roots) if _is_generator(thing)}


def _is_generator(thing: Any) -> bool:
    kind = type(thing)
    if kind.__module__.startswith("numpy.random"):
        return kind.__name__ in ("Generator", "RandomState")
    return isinstance(thing, random.Random) or (kind.__module__.startswith("torch") and kind.__name__ == "Generator")


def _reach(roots: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Every object that the roots lead to, once, by its name, and no plain value."""
    waiting: deque[tuple[str, Any]] = deque(roots)
    seen: set[int] = set()
    kept: list[Any] = []  # ids stay unique while their objects live
    while waiting and len(seen) < MOST_OBJECTS:
        name, thing = waiting.popleft()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        kept.append(thing)
        yield name, thing
        waiting.extend(_parts(name, thing))


def uses_worker_number(dataset: Any) -> bool:
    """Whether a method of the dataset's class (or of a class that it wraps) names ``get_worker_info``."""
    for _ in range(4):
        for owner in type(dataset).__mro__:
            if owner.__module__.partition(".")[0] == "torch":
                continue
            for value in vars(owner).values():
                function = getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType) and any(
                    "get_worker_info" in code.co_names for code in _codes(function.__code__)
                ):
                    return True
        inner = getattr(dataset, "dataset", None)
        if inner is None:
            return False
        dataset = inner
    return False


def _problem(thing: Any) -> str | None:
    kind = type(thing)
    if isinstance(thing, io.IOBase):
        if _closed(thing) or isinstance(thing, (io.BytesIO, io.StringIO)):
            return None
        return "an open file: forked workers would share its position"
    if isinstance(thing, threading.Thread):
        return "a thread, which does not exist in a forked process"
    root = kind.__module__.partition(".")[0]
    if root in _HANDLES:
        return (
            f"{_HANDLES[root]} ({kind.__module__}.{kind.__qualname__}), which must not be shared with a forked process"
        )
    if kind.__module__.startswith(("concurrent.futures", "multiprocessing.pool", "multiprocessing.managers")):
        return f"a {kind.__qualname__}, whose threads or processes do not exist in a forked worker"
    device = getattr(thing, "device", None) if root == "torch" and hasattr(thing, "is_floating_point") else None
    if device is not None and device.type not in ("cpu", "meta"):
        return f"a tensor on {device.type}"
    return None


def _closed(file: Any) -> bool:
    try:
        file.fileno()
    except (OSError, ValueError):
        return True  # closed, or a file in memory only
    return False


def _parts(name: str, thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, dict):
        return [(f"{name}[{str(key)[:40]!r}]", value) for key, value in list(thing.items())[:MOST_ITEMS]]
    if isinstance(thing, (list, tuple)):
        return [(f"{name}[{i}]", value) for i, value in enumerate(thing[:MOST_ITEMS])]
    if isinstance(thing, types.MethodType):
        return [(name, thing.__func__), (name, thing.__self__)]
    if isinstance(thing, types.FunctionType):
        return _of_function(name, thing)
    if type(thing).__module__.partition(".")[0] in ("torch", "numpy"):
        attributes: dict[str, Any] = getattr(thing, "__dict__", {})
        return [(f"{name}.{key}", value) for key, value in list(attributes.items())[:MOST_ITEMS]]
    found = []
    attributes = getattr(thing, "__dict__", None) or {}
    found += [(f"{name}.{key}", value) for key, value in list(attributes.items())[:MOST_ITEMS]]
    for owner in type(thing).__mro__:
        for slot, descriptor in vars(owner).items():
            if isinstance(descriptor, types.MemberDescriptorType):
                found.append((f"{name}.{slot}", getattr(thing, slot, None)))
        for method in ("__getitem__", "__getitems__", "__call__", "__iter__"):
            function = vars(owner).get(method)
            if isinstance(function, types.FunctionType):
                found += _of_function(f"{owner.__qualname__}.{method}", function)
    return found


def _of_function(name: str, function: types.FunctionType) -> list[tuple[str, Any]]:
    found = []
    for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found.append((free, cell.cell_contents))
        except ValueError:  # an empty cell
            continue
    for key in function.__code__.co_names[:MOST_ITEMS]:
        value = function.__globals__.get(key)
        if value is not None and not isinstance(value, (types.ModuleType, type)):
            found.append((key, value))
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)
