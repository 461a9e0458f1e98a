"""Frozen dataclasses -> plain JSON values, and back. A file may come from anybody.

Unknown keys are ignored and missing keys take their default. A value of a type other than the field's is refused with
its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import InvariantError, RecordingError

T = TypeVar("T")

LARGEST = 1e30
"""The largest number in a report; larger ones would exceed the range of a float when drawn."""


def to_plain(value: Any) -> Any:
    """Dataclasses, mappings, tuples and enums as plain JSON values."""
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {name: to_plain(getattr(value, name)) for name in fields}
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


def decode(kind: type[T], value: Any, place: str = "the file") -> T:
    """``value`` as a ``kind``.

    Raises RecordingError with the place in the JSON if it is not a ``kind``.
    """
    import msgspec

    _check_numbers(value, place)
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except (msgspec.ValidationError, InvariantError) as error:
        raise RecordingError(f"{place}: {error}") from None


def decode_contract(kind: type[T], content: Mapping[str, Any], **more: Any) -> T:
    """A report from its complete JSON, which names the version under ``tool``; ``more`` replaces keys of it.

    Raises RecordingError if it is not a ``kind``.
    """
    tool = content.get("tool")
    version = tool.get("version", "") if isinstance(tool, Mapping) else ""
    return decode(kind, {**content, "tool_version": version, **more})


def _check_numbers(value: Any, place: str) -> None:
    """Raises RecordingError for a number beyond the range that can be drawn."""
    if isinstance(value, float | int) and not abs(value) <= LARGEST:  # also true for NaN
        raise RecordingError(f"{place}: {str(value)[:60]} is not a number of usual size")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_numbers(inner, f"{place}.{key}"[:200])
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _check_numbers(inner, f"{place}[{at}]")


def read_number(value: Any) -> float | None:
    """A number of ordinary size from a file that anybody may have written; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e18 else None
