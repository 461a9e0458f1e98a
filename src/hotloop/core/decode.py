"""Frozen dataclasses -> plain JSON values, and back. A file may come from anybody.

Unknown keys are ignored and missing keys take their default, so that files of an older or newer hotloop remain
readable. A value of a type other than the field's is refused with its place.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import InvariantError, RecordingError

T = TypeVar("T")
Special = Mapping[type, Callable[[Any, str], Any]]
"""How to read a type whose JSON is not that of its fields, from the value and its place."""

LARGEST = 1e30
"""The largest number in a report; larger ones would exceed the range of a float when drawn."""


def to_plain(value: Any) -> Any:
    """Dataclasses, mappings, tuples and enums as plain JSON values."""
    found = getattr(type(value), "__dataclass_fields__", None)
    if found is not None:
        return {name: to_plain(getattr(value, name)) for name in found}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return getattr(value, "value", value)
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


def encode_contract(schema: str, report: Any, **first: Any) -> dict[str, Any]:
    """A report as the JSON that ``decode_contract`` reads; ``first`` are keys that are not fields."""
    fields = to_plain(report)
    return {"schema": schema, "tool": {"version": fields.pop("tool_version")}, **first, **fields}


def decode(kind: type[T], value: Any, special: Special | None = None, place: str = "") -> T:
    """``value`` as a ``kind``.

    Raises RecordingError with the place in the JSON if it is not a ``kind``.
    """
    found: T = _decode(kind, value, special or {}, place)
    return found


def decode_contract(kind: type[T], content: Mapping[str, Any], special: Special | None = None, **more: Any) -> T:
    """A report from its complete JSON, which names the version under ``tool``; ``more`` replaces keys of it.

    Raises RecordingError if it is not a ``kind``.
    """
    if not isinstance(content, Mapping):
        raise _refuse("", "an object", content)
    tool = content.get("tool")
    version = tool.get("version", "") if isinstance(tool, Mapping) else ""
    return decode_fields(kind, {**content, "tool_version": version, **more}, special or {}, "")


def decode_fields(kind: type[T], value: Any, special: Special, place: str) -> T:
    """A dataclass by its own fields, bypassing ``special``."""
    if not isinstance(value, Mapping):
        raise _refuse(place, "an object", value)
    hints: dict[str, Any] = _hints_of(kind)  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        inner = f"{place}.{one.name}" if place else one.name
        if one.name in value:
            given[one.name] = _decode(hints[one.name], value[one.name], special, inner)
        elif one.default is MISSING and one.default_factory is MISSING:
            if not _allows_none(hints[one.name]):
                raise RecordingError(f"{inner} is missing")
            given[one.name] = None
    try:
        return kind(**given)
    except InvariantError as error:
        raise RecordingError(f"{place or kind.__name__}: {error}") from None


@cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _allows_none(hint: Any) -> bool:
    return hint is Any or type(None) in get_args(hint)


def _decode(hint: Any, value: Any, special: Special, place: str) -> Any:
    if hint in special:
        return special[hint](value, place)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint), value, special, place)
    if hint is Any:
        return _check_plain(value, place)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, special, place)
    if origin is list:
        return list(_decode_tuple((*get_args(hint), ...), value, special, place))
    if origin in (Mapping, dict):
        return _decode_mapping(get_args(hint), value, special, place)
    if is_dataclass(hint):
        return decode_fields(hint, value, special, place)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            known = ", ".join(str(one.value) for one in hint)
            raise _refuse(place, f"one of {known}", value) from None
    return _decode_scalar(str if origin is Literal else hint, value, place)  # a newer hotloop may know more words


def _decode_union(hints: tuple[Any, ...], value: Any, special: Special, place: str) -> Any:
    if {list, dict} <= {get_origin(hint) for hint in hints}:
        return _check_plain(value, place)  # core.findings.Value
    if value is None and type(None) in hints:
        return None
    error = None
    for hint in hints:
        if hint is not type(None):
            try:
                return _decode(hint, value, special, place)
            except RecordingError as refused:
                error = refused
    raise error or _refuse(place, "nothing", value)


def _decode_tuple(hints: tuple[Any, ...], value: Any, special: Special, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _refuse(place, "a list", value)
    if len(hints) == 2 and hints[1] is ...:
        hints = (hints[0],) * len(value)
    elif len(hints) != len(value):
        raise _refuse(place, f"{len(hints)} values", value)
    return tuple(
        _decode(hint, one, special, f"{place}[{i}]") for i, (hint, one) in enumerate(zip(hints, value, strict=True))
    )


def _decode_mapping(hints: tuple[Any, ...], value: Any, special: Special, place: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _refuse(place, "an object", value)
    key_hint, hint = hints
    found = {}
    for key, one in value.items():
        if key_hint is int:
            try:
                key = int(key)
            except ValueError:
                raise _refuse(place, "numbers as keys", key) from None
        found[key] = _decode(hint, one, special, f"{place}.{key}"[:200])
    return found


def _decode_scalar(hint: Any, value: Any, place: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return _check_plain(value, place)
    if type(value) is not hint:
        raise _refuse(place, {int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "text"), value)
    return _check_plain(value, place)


def _check_plain(value: Any, place: str) -> Any:
    """Any JSON value as it is, its numbers within the range that can be drawn."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        if not abs(value) <= LARGEST:  # also true for NaN
            raise _refuse(place, "a number of usual size", value)
    elif isinstance(value, list):
        for i, one in enumerate(value):
            _check_plain(one, f"{place}[{i}]")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _check_plain(one, f"{place}.{key}"[:200])
    return value


def _refuse(place: str, wanted: str, value: Any) -> RecordingError:
    shown = str(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return RecordingError(f"{place or 'the file'} should be {wanted}, not {shown[:60]!r}")


def read_number(value: Any) -> float | None:
    """A number of ordinary size from a file that anybody may have written; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e18 else None
