"""Decimal text of microseconds -> int64 nanoseconds, exactly: no float in between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

OK, MISSING, WRONG = 0, 1, 2
"""States of a token: a number; absent or null; anything else, or out of the range of int64 ns."""

LIMIT_NS = 2**62
"""Times beyond it are wrong, so that a start and a duration can be added."""

_Int64s: TypeAlias = NDArray[np.int64]

_PLAIN = re.compile(rb"[0-9]{1,18}(?:\.[0-9]{1,18})?")
_NUMBER = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][-+]?[0-9]{1,4})?")
_POWERS = np.array([10**power for power in range(19)], dtype=np.int64)
_UNIT_DIGITS = 3
"""Microseconds have three digits of nanoseconds after the point."""
_CONTEXT = Context(prec=800, Emax=10_000, Emin=-10_000)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """``ns`` is 0 where ``state`` (None: all are OK) is not OK."""

    ns: _Int64s
    state: NDArray[np.int8] | None


def parse_microseconds(tokens: Sequence[Any]) -> Times:
    """Nanoseconds of JSON tokens (bytes or buffers): numbers, or strings that hold a number.

    Digits beyond the nanosecond are rounded half to even.

    >>> parse_microseconds([b"1712185938123456.789", b'"2"', b"1e3"]).ns.tolist()
    [1712185938123456789, 2000, 1000000]
    """
    count = len(tokens)
    if not count:
        return Times(ns=np.empty(0, dtype=np.int64), state=None)
    text = b",".join(tokens)
    if not text.translate(None, b"0123456789.,"):
        ns = _parse_plain(text, count)
        if ns is not None:
            return Times(ns=ns, state=None)
    return _parse_mixed([bytes(token) for token in tokens])


def parse_one(token: bytes) -> tuple[int, int]:
    """(ns, state) of one token of any form."""
    text = token.decode("ascii", "replace").strip()
    if len(text) >= 2 and text[0] == '"' and text[-1] == '"':
        text = text[1:-1].strip()
    if text in ("", "null"):
        return 0, MISSING
    if _NUMBER.fullmatch(text) is None:
        return 0, WRONG
    try:
        ns = int(_CONTEXT.scaleb(Decimal(text), _UNIT_DIGITS).to_integral_value(ROUND_HALF_EVEN, _CONTEXT))
    except (InvalidOperation, OverflowError):
        return 0, WRONG
    return (ns, OK) if abs(ns) <= LIMIT_NS else (0, WRONG)


def _parse_mixed(tokens: Sequence[bytes]) -> Times:
    """Plain tokens by the dozen, the others one by one."""
    plain = [_PLAIN.fullmatch(token) is not None for token in tokens]
    ns = _parse_plain(
        b",".join(token if fits else b"0" for token, fits in zip(tokens, plain, strict=True)), len(tokens)
    )
    if ns is None:
        plain, ns = [False] * len(tokens), np.zeros(len(tokens), dtype=np.int64)
    state = np.zeros(len(tokens), dtype=np.int8)
    for at, fits in enumerate(plain):
        if not fits:
            ns[at], state[at] = parse_one(tokens[at])
    return Times(ns=ns, state=state if state.any() else None)


def _parse_plain(text: bytes, count: int) -> _Int64s | None:
    """Nanoseconds of comma-separated digits with at most one point each; None where a token is anything else."""
    if b"." not in text:
        return _scale(_read_integers(text, count))
    marks = np.frombuffer(text, dtype=np.uint8)
    points = np.flatnonzero(marks == ord("."))
    ends = np.append(np.flatnonzero(marks == ord(",")), len(text))
    if len(ends) != count:
        return None
    owner = np.searchsorted(ends, points)
    if (owner[1:] == owner[:-1]).any():
        return None
    digits = ends[owner] - points - 1
    if digits.min() < 1 or digits.max() > 18:
        return None
    if len(points) == count and (digits == _UNIT_DIGITS).all():
        # What Kineto writes: without its point the text is the number of nanoseconds.
        return _within_limit(_read_integers(text.replace(b".", b""), count))
    parts = _read_integers(text.replace(b".", b","), count + len(points))
    if parts is None:
        return None
    at = np.arange(count)
    at[1:] += np.cumsum(np.bincount(owner, minlength=count))[:-1]
    ns = _scale(parts[at])
    if ns is None:
        return None
    fraction = parts[at[owner] + 1]
    short = digits <= _UNIT_DIGITS
    ns[owner[short]] += fraction[short] * _POWERS[_UNIT_DIGITS - digits[short]]
    ns[owner[~short]] += _round_half_even(fraction[~short], _POWERS[digits[~short] - _UNIT_DIGITS])
    return ns


def _round_half_even(values: _Int64s, divisor: _Int64s) -> _Int64s:
    whole, rest = np.divmod(values, divisor)
    half = divisor // 2
    up = (rest > half) | ((rest == half) & (whole % 2 == 1))
    return np.asarray(whole + up, dtype=np.int64)


def _read_integers(text: bytes, count: int) -> _Int64s | None:
    """The unsigned integers of a comma-separated text; None when one is empty or has more than 19 digits."""
    if not text or text[0] == ord(",") or text[-1] == ord(",") or b",," in text:
        return None
    commas = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord(","))
    lengths = np.diff(commas, prepend=-1, append=len(text)) - 1
    if len(lengths) != count or lengths.max() > 19:
        return None
    values = np.fromstring(text, dtype=np.int64, sep=",")
    return values if len(values) == count else None


def _scale(values: _Int64s | None) -> _Int64s | None:
    """Whole microseconds as nanoseconds; None beyond the limit (a number too long for int64 reads as its largest)."""
    if values is None or values.max() > LIMIT_NS // 1000 - 1:
        return None
    return np.asarray(values * 1000, dtype=np.int64)


def _within_limit(values: _Int64s | None) -> _Int64s | None:
    return None if values is None or values.max() > LIMIT_NS else values
