"""Catalogue: the extensions of one package, found by importing its modules."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Generic, Protocol, TypeVar

from .errors import InvariantError, UsageError, suggest_known


class Named(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Named)


def _list_values(module: ModuleType, kind: type[T]) -> list[T]:
    found = list(vars(module).values())
    classes = [one for one in found if isinstance(one, type) and one.__module__ == module.__name__]
    return [one for one in found if isinstance(one, kind)] or [_make(one) for one in classes if issubclass(one, kind)]


_make = functools.cache(lambda kind: kind())
"""One value of a class for all catalogues."""


class Catalogue(Mapping[str, T], Generic[T]):
    """Every value of ``kind`` that the modules of ``packages`` define, else one of each class of that kind; by id.

    An unknown id raises an error that lists the known ones; two values with one id are refused.
    """

    def __init__(self, kind: type[T], *packages: str) -> None:
        self._kind = kind
        self._packages = packages
        self._found: dict[str, T] | None = None

    def _load(self) -> dict[str, T]:
        if self._found is None:
            found: dict[str, T] = {}
            for package in self._packages:
                for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
                    module = importlib.import_module(f"{package}.{info.name}")
                    for value in _list_values(module, self._kind):
                        if found.setdefault(value.id, value) is not value:
                            raise InvariantError(f"{package} defines {value.id!r} twice")
            self._found = dict(sorted(found.items()))
        return self._found

    def __getitem__(self, key: str) -> T:
        try:
            return self._load()[key]
        except KeyError:
            raise UsageError(f"unknown id {key!r}{suggest_known(key, self._load())}") from None

    def __contains__(self, key: object) -> bool:
        return key in self._load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())
