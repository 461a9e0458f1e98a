"""A copy of a mask, of token numbers or of frames -> how much of it is padding."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hotloop.core.events import COPIED_FRAMES, COPIED_IDS, COPIED_KEY_MASK

Counted = tuple[int, int, int]
"""Tokens, padding, and elements if each batch were padded only to its own longest sample."""
_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


def count_padding(data: bytes, what: int, rows: int, columns: int, item: int, sample_dim: int = 0) -> Counted | None:
    """What a copy of ``rows`` x ``columns`` elements of ``item`` bytes holds; None when it holds no sequences.

    ``sample_dim`` says which dimension counts samples where there is no mask; the other one is time. Padding is read
    from a mask, else from equal trailing values of integer rows, or all-zero trailing frames.

    >>> count_padding(bytes([1, 1, 0, 1, 0, 0]), 0, 2, 3, 1)
    (3, 3, 4)
    """
    if rows <= 0 or columns <= 0 or item <= 0 or len(data) != rows * columns * item:
        return None
    if what == COPIED_FRAMES:
        return _count_frames(data, rows, columns, item, sample_dim)
    values: Any = array(_CODES.get(item, "b"), data)
    lines = [values[at : at + columns] for at in range(0, len(values), columns)]
    if what == COPIED_IDS:
        if sample_dim == 1:
            lines = [values[column::columns] for column in range(columns)]
        return _count_ids(lines)
    padded = what == COPIED_KEY_MASK and not all(line[0] for line in lines)  # such masks are true where padded
    kept = [[not value for value in line] if padded else line for line in lines]
    return _count_kept(kept)


def _count_kept(lines: Sequence[Sequence[int]]) -> Counted:
    size, columns = len(lines) * len(lines[0]), len(lines[0])
    tokens = size - sum(line.count(0) for line in lines)
    longest = 0
    for line in lines:
        end = columns
        while end > longest and not line[end - 1]:
            end -= 1
        longest = max(longest, end)
    return tokens, size - tokens, longest * len(lines)


def _count_ids(lines: Sequence[Any]) -> Counted | None:
    size, columns = len(lines) * len(lines[0]), len(lines[0])
    if columns < 2:
        return None
    pad, count = Counter(line[-1] for line in lines).most_common(1)[0]
    whole = (size, 0, size)
    if count * 4 < len(lines):
        return whole
    lengths = []
    for line in lines:
        end = columns
        while end and line[end - 1] == pad:
            end -= 1
        lengths.append(end)
    padding = sum(columns - end for end in lengths)
    # A pad number is reserved: in categories or plain text the same value also stands elsewhere. And one value at the
    # end of one row of a small batch is a token like any other.
    elsewhere = sum(line.count(pad) for line in lines) - padding
    if elsewhere * 1000 > size or padding < 2 or padding * 100 < size * 2:
        return whole
    return size - padding, padding, max(lengths) * len(lines)


def _count_frames(data: bytes, rows: int, columns: int, item: int, sample_dim: int) -> Counted | None:
    filled = [data.count(0, at, at + item) != item for at in range(0, len(data), item)]
    lines = [filled[at : at + columns] for at in range(0, len(filled), columns)]
    if sample_dim == 1:
        lines = [filled[column::columns] for column in range(columns)]
    tokens, padding, longest = _count_trailing(lines)
    return None if padding * 100 < len(filled) * 2 else (tokens, padding, longest)


def _count_trailing(lines: Sequence[list[bool]]) -> Counted:
    columns, lengths = len(lines[0]), []
    for line in lines:
        end = columns
        while end and not line[end - 1]:
            end -= 1
        lengths.append(end)
    return sum(lengths), len(lines) * columns - sum(lengths), max(lengths) * len(lines)
