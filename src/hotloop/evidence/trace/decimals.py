"""Decimal text of microseconds -> int64 nanoseconds, exactly: no float in between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

OK, MISSING, WRONG = 0, 1, 2
"""States of a token: a number; absent or null; anything else, or out of the range of int64 ns."""

LIMIT_NS = 2**62
"""Times beyond this are wrong, so that a start and a duration can be added."""

_SHORT = re.compile(rb"([0-9]{1,15})(?:\.([0-9]{1,3}))?")
_NUMBER = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][-+]?[0-9]{1,4})?")
_CONTEXT = Context(prec=800, Emax=10_000, Emin=-10_000)


def parse_microseconds(tokens: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Nanoseconds and states of JSON tokens (bytes or buffers): numbers, or strings that hold a number.

    Nanoseconds are 0 if the state is not OK. Digits beyond the nanosecond are rounded half to even.

    >>> parse_microseconds([b"1712185938123456.789", b'"2"', b"1e3"])[0].tolist()
    [1712185938123456789, 2000, 1000000]
    """
    ns = _parse_alike(b",".join(tokens), len(tokens)) if tokens else None
    if ns is not None:
        return ns, np.zeros(len(tokens), dtype=np.int8)
    parsed = np.array([parse_one(bytes(token)) for token in tokens], dtype=np.int64).reshape(-1, 2)
    return np.ascontiguousarray(parsed[:, 0]), parsed[:, 1].astype(np.int8)


def parse_one(token: bytes) -> tuple[int, int]:
    """(ns, state) of one token of any form."""
    short = _SHORT.fullmatch(token)
    if short is not None:
        return int(short[1]) * 1000 + int((short[2] or b"").ljust(3, b"0")), OK
    text = token.decode("ascii", "replace").strip()
    if len(text) >= 2 and text[0] == '"' and text[-1] == '"':
        text = text[1:-1].strip()
    if text in ("", "null"):
        return 0, MISSING
    if _NUMBER.fullmatch(text) is None:
        return 0, WRONG
    try:
        ns = int(_CONTEXT.scaleb(Decimal(text), 3).to_integral_value(ROUND_HALF_EVEN, _CONTEXT))
    except (InvalidOperation, OverflowError):
        return 0, WRONG
    return (ns, OK) if abs(ns) <= LIMIT_NS else (0, WRONG)


def _parse_alike(text: bytes, count: int) -> NDArray[np.int64] | None:
    """Tokens that all have three digits after the point, as Kineto writes them, or all none; None for any others."""
    if text.translate(None, b"0123456789.,"):
        return None
    marks = np.frombuffer(text, dtype=np.uint8)
    ends = np.append(np.flatnonzero(marks == ord(",")), len(text))
    points = np.flatnonzero(marks == ord("."))
    has_points = len(points) > 0
    if len(ends) != count or (has_points and (len(points) != count or (ends - points != 4).any())):
        return None
    lengths = (points if has_points else ends) - np.append(0, ends[:-1] + 1)
    if lengths.min() < 1 or lengths.max() > 16:
        return None
    values = np.fromstring(text.replace(b".", b""), dtype=np.int64, sep=",")
    # A number that is too long for int64 reads as its largest.
    if len(values) != count or values.max() > (LIMIT_NS if has_points else LIMIT_NS // 1000):
        return None
    return values if has_points else np.asarray(values * 1000, dtype=np.int64)
