"""A data set and a cache -> the same object, read through the cache.

Only its class changes, to a subclass of its own of the same name: whoever holds the data set, sets its attributes or
asks ``isinstance`` notices nothing, and its pickles and copies are those of the original class, without the cache.
"""

from __future__ import annotations

import copyreg
import functools
import weakref
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, Generic

from hotloop.apply.sample_cache import SampleCache

CACHE = "_hotloop_cache"
_new_object = vars(copyreg)["__newobj__"]


def find_obstacle(dataset: Any) -> str | None:
    """Why the class of this data set cannot be changed; None where it can."""
    kind = type(dataset)
    if type(kind) not in (type, ABCMeta):
        return f"{kind.__name__} has a metaclass of its own ({type(kind).__name__})"
    for owner in kind.__mro__:
        if "__init_subclass__" in vars(owner) and owner not in (object, Generic):
            return f"{owner.__name__} is told of its subclasses (__init_subclass__), so none can be made unnoticed"
    if not kind.__flags__ & 1 << 9:  # Py_TPFLAGS_HEAPTYPE
        return f"{kind.__name__} is a built-in class, whose instances cannot be read through a cache"
    return None


def is_read_through_cache(dataset: Any) -> bool:
    """Whether ``read_through_cache`` has changed it."""
    return hasattr(type(dataset), CACHE)


def read_through_cache(dataset: Any, cache: SampleCache) -> Callable[[], None]:
    """Let ``dataset[i]`` (and ``__getitems__``, where it has that) take from the cache; answers what takes it back.

    Raises TypeError where Python does not let an object of this class become another.
    """
    kind: Any = type(dataset)
    mine = weakref.ref(dataset)

    @functools.wraps(kind.__getitem__)
    def __getitem__(self: Any, key: Any) -> Any:
        if self is not mine():  # another one that the script made of this class
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
