"""Stack samples of a recording -> the lines of the user's code that each time field was spent in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hotloop.core.analysis import Line
from hotloop.core.findings import Where
from hotloop.core.recording import TIME_FIELDS

from .facts import MAX_ITEMS, Fact, of_kind, read_items, read_where
from .source import SourceFiles

MAX_LINES = 12
"""Lines kept of each time field; the rest is named by nobody but still counts in the shares."""
MAX_STACK_DEPTH = 64

Stack = tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class SampledLines:
    """``by_field`` are the lines of every time field, largest share first; ``samples`` the samples of every field."""

    by_field: Mapping[str, tuple[Line, ...]]
    samples: Mapping[str, int]


def collect_lines(
    facts: Sequence[Fact], first_row: int, last_row: int, files: SourceFiles, base_folder: str
) -> SampledLines:
    """The lines seen while rows ``first_row..last_row`` were recorded (all lines when no sample lies among them)."""
    samples = of_kind(facts, "samples")
    inside = [fact for fact in samples if _lies_within(fact, first_row, last_row)]
    counts: dict[str, Counter[tuple[Stack, str]]] = {}
    for fact in inside or samples:
        for name, stack, leaf, count in _read_counts(fact, base_folder):
            counts.setdefault(name, Counter())[stack, leaf] += count
    return SampledLines(
        by_field={name: _largest_lines(counts[name], files) for name in TIME_FIELDS if name in counts},
        samples={name: sum(counter.values()) for name, counter in counts.items()},
    )


def _lies_within(fact: Fact, first_row: int, last_row: int) -> bool:
    """True when most of the rows that a fact covers are among the given ones."""
    rows = read_items(fact, "rows")
    if len(rows) != 2 or not all(isinstance(r, int) for r in rows):
        return False
    middle: float = (rows[0] + rows[1]) / 2
    return first_row <= middle <= last_row + 1


def _read_counts(fact: Fact, base_folder: str) -> Iterator[tuple[str, Stack, str, int]]:
    for item in read_items(fact, "counts"):
        if not isinstance(item, (list, tuple)) or len(item) != 4:
            continue
        name, frames, leaf, count = item
        if name not in TIME_FIELDS or not isinstance(frames, (list, tuple)) or isinstance(count, bool):
            continue
        if not isinstance(count, int) or not 0 < count < 1 << 40:
            continue
        places = [read_where(frame) for frame in frames[-MAX_STACK_DEPTH:]]
        stack = tuple(_absolute(place, base_folder) for place in places if place is not None)
        yield name, stack, leaf[:MAX_ITEMS] if isinstance(leaf, str) else "", count


def _absolute(place: Where, base_folder: str) -> Where:
    if place.file.startswith("<") or os.path.isabs(place.file) or not base_folder:
        return place
    return replace(place, file=os.path.normpath(os.path.join(base_folder, place.file)))


def _largest_lines(counter: Counter[tuple[Stack, str]], files: SourceFiles) -> tuple[Line, ...]:
    total = sum(counter.values())
    by_place: dict[Where, Counter[tuple[Stack, str]]] = {}
    for (stack, leaf), count in counter.items():
        if stack:
            by_place.setdefault(stack[-1], Counter())[stack, leaf] += count
    ranked = sorted(by_place.items(), key=lambda item: (-sum(item[1].values()), item[0].file, item[0].line))
    lines = []
    for where, stacks in ranked[:MAX_LINES]:
        samples = sum(stacks.values())
        (stack, _), _count = stacks.most_common(1)[0]
        leaves: Counter[str] = Counter()
        for (_stack, leaf), count in stacks.items():
            leaves[leaf] += count
        lines.append(
            Line(
                where=where,
                share_ratio=samples / total,
                samples=samples,
                text=files.text(where),
                stack=stack,
                leaf=leaves.most_common(1)[0][0],
                calls=files.calls(where),
            )
        )
    return tuple(lines)
