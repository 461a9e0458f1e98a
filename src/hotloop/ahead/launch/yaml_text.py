"""Plain values with notes -> YAML that every reader parses to the same values.

Only unambiguous strings are written plain; every other string is quoted as in JSON, with the escapes of YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that YAML 1.1 reads as something else, in uppercase or lowercase."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BLOCK_LINE = re.compile(r"[\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


@dataclass(frozen=True, slots=True)
class Noted:
    """A value of a mapping, with the reason for it, which becomes a comment above its key."""

    value: Any
    why: str


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
        return [line for key, one in value.items() for line in _place(f"{_scalar(str(key))}:", one)]
    if isinstance(value, list | tuple) and value:
        return [line for one in value for line in _place("-", one)]
    return [_scalar(value)]


def _place(head: str, value: Any) -> list[str]:
    """The lines of a value with its key or its dash."""
    if isinstance(value, Noted):
        return [*_comment(value.why), *_place(head, value.value)]
    if isinstance(value, str) and _fits_block(value):
        return [f"{head} |", *_indent(value[:-1].split("\n"))]
    lines = _lines(value)
    if head != "-" and isinstance(value, Mapping | list | tuple) and value:
        return [head, *_indent(lines)]
    # A comment on the first key of an item is above the dash.
    at = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    return [*lines[:at], f"{head} {lines[at]}", *_indent(lines[at + 1 :])]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


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
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    if value is None or isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} cannot be written to a manifest")
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
