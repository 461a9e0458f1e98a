"""Recorded operators of a step, or sizes as the user writes them -> matrix products to time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hotloop.core.errors import UsageError

MOST_PRODUCTS = 12

Shape = dict[str, Any]
"""``b`` products of m x k by k x n, ``count`` times a step."""


def parse_sizes(text: str) -> list[Shape]:
    """``MxKxN,...`` -> products, once a step each.

    >>> parse_sizes("64x128x256")
    [{'b': 1, 'm': 64, 'k': 128, 'n': 256, 'count': 1.0}]
    """
    found = []
    for part in text.split(","):
        numbers = part.strip().split("x")
        if len(numbers) != 3 or not all(n.isdecimal() and 0 < int(n) <= 1 << 20 for n in numbers):
            raise UsageError(f"--sizes {part.strip()!r}; give MxKxN, such as 512x1024x1024")
        m, k, n = (int(number) for number in numbers)
        found.append({"b": 1, "m": m, "k": k, "n": n, "count": 1.0})
    return found


def find_products(ops: Iterable[Mapping[str, Any]]) -> tuple[list[Shape], int]:
    """The products among recorded operators, those with most arithmetic a step first; and how many were left out."""
    counts: dict[tuple[int, int, int, int], float] = {}
    for op in ops:
        size = _size_of(str(op.get("name")), op.get("shapes") or ())
        if size is not None:
            counts[size] = counts.get(size, 0.0) + float(op.get("count") or 0)
    ranked = sorted(counts.items(), key=lambda item: -math.prod(item[0]) * item[1])
    kept = [{"b": b, "m": m, "k": k, "n": n, "count": count} for (b, m, k, n), count in ranked[:MOST_PRODUCTS]]
    return kept, len(ranked) - len(kept)


def _size_of(name: str, shapes: Sequence[Sequence[int]]) -> tuple[int, int, int, int] | None:
    tensors = [tuple(int(n) for n in shape) for shape in shapes if shape]
    if name == "aten::addmm":
        tensors = tensors[1:]
    if name not in ("aten::linear", "aten::addmm", "aten::mm", "aten::bmm", "aten::matmul") or len(tensors) < 2:
        return None
    left, right = tensors[:2]
    if len(left) < 2 or len(right) < 2:
        return None
    if name == "aten::linear":
        right = (right[1], right[0])
    k, n = right[-2:]
    if left[-1] != k or min(*left, *right) < 1:
        return None
    if len(right) == 2:
        return 1, math.prod(left[:-1]), k, n
    return math.prod(left[:-2]), left[-2], k, n
