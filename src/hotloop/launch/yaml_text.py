"""Plain values with notes -> YAML that every reader takes for the same values.

Only what cannot be misread is written plain; every other string is quoted as in JSON, with the escapes of YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that YAML 1.1 takes for something else, in any case of letters."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BLOCK_LINE = re.compile(r"[\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


@dataclass(frozen=True, slots=True)
class Noted:
    """A value of a mapping, with the reason for it, which becomes a comment above its key."""

    value: Any
    why: str


def strip_notes(value: Any) -> Any:
    """The value as a reader of the YAML sees it."""
    if isinstance(value, Noted):
        return strip_notes(value.value)
    if isinstance(value, Mapping):
        return {key: strip_notes(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [strip_notes(one) for one in value]
    return value


def draw_yaml(value: Any) -> str:
    r"""One document.

    >>> print(draw_yaml({"a": Noted("on", "why"), "b": [1, {"c": "x y"}], "s": "two\nlines\n"}), end="")
    # why
    a: "on"
    b:
      - 1
      - c: "x y"
    s: |
      two
      lines
    """
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, Noted):
        return [*_comment(value.why), *_lines(value.value)]
    if isinstance(value, Mapping) and value:
        return [line for key, one in value.items() for line in _entry(str(key), one)]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [line for one in value for line in _item(one)]
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    if isinstance(value, Noted):
        return [*_comment(value.why), *_entry(key, value.value)]
    head = f"{_scalar(key)}:"
    if isinstance(value, str) and _fits_block(value):
        return [f"{head} |", *(f"  {line}" if line else "" for line in value[:-1].split("\n"))]
    if isinstance(value, Mapping | list | tuple) and value:
        return [head, *(f"  {line}" if line else "" for line in _lines(value))]
    return [f"{head} {_scalar(value)}"]


def _item(value: Any) -> list[str]:
    if isinstance(value, Noted):
        return [*_comment(value.why), *_item(value.value)]
    if isinstance(value, str) and _fits_block(value):
        return ["- |", *(f"  {line}" if line else "" for line in value[:-1].split("\n"))]
    first, *rest = _lines(value)
    if first.startswith("#"):  # a comment on the first key of an item stands above the dash
        at = next(i for i, line in enumerate([first, *rest]) if not line.startswith("#"))
        every = [first, *rest]
        return [*every[:at], *_dashed(every[at:])]
    return _dashed([first, *rest])


def _dashed(lines: list[str]) -> list[str]:
    return [f"- {lines[0]}", *(f"  {line}" if line else "" for line in lines[1:])]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in text.splitlines()]


def _fits_block(text: str) -> bool:
    lines = text.split("\n")
    return (
        len(lines) > 2
        and lines[-1] == ""
        and lines[-2].strip(" ") != ""
        and lines[0].strip(" ") != ""
        and not lines[0].startswith(" ")
        and all(_BLOCK_LINE.fullmatch(line) for line in lines)
    )


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{}"
    if not isinstance(value, str):
        if isinstance(value, Sequence):
            return "[]"
        raise TypeError(f"{type(value).__name__} has no place in a manifest")
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(map(_escape, value)) + '"'


def _escape(sign: str) -> str:
    if sign in _ESCAPES:
        return _ESCAPES[sign]
    if _BLOCK_LINE.fullmatch(sign):
        return sign
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
