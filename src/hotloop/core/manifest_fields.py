"""A value of YAML or JSON -> FieldFaults: fields that its table does not know, that are missing, or that hold another
kind of value. manifest_tables.py has the tables, and the notation for kinds."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import suggest_known
from .manifest_tables import known_fields, read_types

_QUANTITY = re.compile(r"[+-]?[0-9]*(\.[0-9]*)?([mkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?(?<=[0-9mkMGTPEi.])")
Types = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class FieldFault:
    """``path`` leads to the field through keys and positions; ``owner`` is the type that contains an unknown field, and
    is empty for other faults."""

    path: tuple[str | int, ...]
    reason: str
    owner: str = ""

    @property
    def where(self) -> str:
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path]
        return "".join(parts).removeprefix(".")

    @property
    def text(self) -> str:
        return f"{self.where}: {self.reason}" if self.path else self.reason


def find_field_faults(value: Any, table: str) -> Iterator[FieldFault]:
    """In the order of the fields. Reads what an alias repeats only once."""
    yield from _check(value, "@root", (), read_types(table), set())


def _check(
    value: Any, kind: str, path: tuple[str | int, ...], types: Types, seen: set[tuple[int, str]]
) -> Iterator[FieldFault]:
    if value is None and path:
        return  # as if it were left out
    if isinstance(value, dict | list):
        if (id(value), kind) in seen:
            return
        seen.add((id(value), kind))
    choices = kind.split(", ")
    if len(choices) > 1:
        found = [list(_check(value, one, path, types, seen)) for one in choices]
        if all(found):
            # The errors of the choice that this value is nearest to; else all of them as one.
            deep = [one for one in found if one[0].path != path]
            names = " or ".join(map(_name, choices))
            yield from deep[0] if deep else [FieldFault(path, f"{describe(value)}; give {names}")]
        return
    if kind.startswith("@"):
        if not isinstance(value, dict):
            yield FieldFault(path, f"{describe(value)}; give a map")
            return
        yield from _check_fields(value, kind[1:], path, types, seen)
    elif kind.startswith("["):
        if not isinstance(value, list):
            yield FieldFault(path, f"{describe(value)}; give a list")
            return
        for at, one in enumerate(value):
            yield from _check(one, kind[1:-1], (*path, at), types, seen)
    elif kind.startswith("{"):
        if not isinstance(value, dict):
            yield FieldFault(path, f"{describe(value)}; give a map")
            return
        for key, one in value.items():
            yield from _check(one, kind[1:-1], (*path, key), types, seen)
    elif not _fits(value, kind):
        yield FieldFault(path, f"{describe(value)}; give {_name(kind)}")


def _check_fields(
    value: dict[str, Any], owner: str, path: tuple[str | int, ...], types: Types, seen: set[tuple[int, str]]
) -> Iterator[FieldFault]:
    fields = types[owner]
    known = known_fields(fields)
    for name in fields:
        if name.endswith("!") and value.get(name[:-1]) is None:
            yield FieldFault((*path, name[:-1]), "missing")
    for key, one in value.items():
        if key not in known:
            yield FieldFault((*path, key), f"unknown field{suggest_known(str(key), known)}", owner)
        else:
            yield from _check(one, known[key], (*path, key), types, seen)


_TYPES: dict[str, tuple[type | types.UnionType, str]] = {
    "int": (int, "a whole number"),
    "number": (int | float, "a number"),
    "bool": (bool, "true or false"),
    "string": (str, "a string (in quotes)"),
    "object": (dict, "a map"),
}
_NAMES = {
    "strings": "a map of strings (numbers in quotes)",
    "quantity": "a quantity such as 500m, 8 or 16Gi",
}


def _fits(value: Any, kind: str) -> bool:
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind][0]) and isinstance(value, bool) == (kind == "bool")
    if kind.startswith("int>="):
        return _fits(value, "int") and value >= int(kind.removeprefix("int>="))
    if kind == "strings":
        return isinstance(value, dict) and all(isinstance(one, str | None) for one in [*value, *value.values()])
    if kind == "quantity":
        return not isinstance(value, bool) and _QUANTITY.fullmatch(str(value)) is not None
    if kind.startswith("/"):
        return isinstance(value, str) and re.fullmatch(kind[1:-1], value) is not None
    return kind == "any" or value in kind.split("|")


def _name(kind: str) -> str:
    if kind in _TYPES:
        return _TYPES[kind][1]
    if kind.startswith("int>="):
        return f"a whole number of {kind.removeprefix('int>=')} or more"
    if kind.startswith("/"):
        return f"a string that fits {kind}"
    if kind[0] in "@{[":
        return "a list" if kind.startswith("[") else "a map"
    return _NAMES.get(kind) or f"one of {kind.replace('|', ', ')}"


def describe(value: Any) -> str:
    """The value as JSON, cut; for values that hold other collections, which aliases may multiply, only the type."""
    if isinstance(value, dict | list) and any(
        isinstance(one, dict | list) for one in (value.values() if isinstance(value, dict) else value)
    ):
        return "a map" if isinstance(value, dict) else "a list"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
