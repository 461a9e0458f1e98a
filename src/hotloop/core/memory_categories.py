"""Who made each allocation and how long it lived -> its category, that is its purpose; 'unknown' if neither shows it.

The place of an allocation does not show its purpose: a forward makes both what its backward needs and what the next
operator throws away. Its lifetime does, if the recording goes on for long enough:

- made in a module's forward: *activation* if a backward began while it was held or the recording ended, else
  *temporary*;
- made in a backward: *gradient* if it outlived that backward, else *temporary*; a forward that runs again in a
  backward (activation checkpointing) makes *activation*;
- made in an optimizer's step: *optimizer_state* if it outlived the step, else *temporary*;
- made elsewhere and freed by a backward: *activation* (a loss, say);
- copied to the device by a line outside of all these that copies again after a forward has run: *input*.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Origin(IntEnum):
    """What made or freed an allocation, as far as its stack or the operators around it show."""

    UNTOLD = 0
    """Nothing was recorded about it."""
    ELSEWHERE = 1
    """Code that is none of the others."""
    PARAMETER = 2
    """Code that builds, moves, loads or gathers a module's parameters and buffers."""
    STATE = 3
    """Code that creates the state of an optimizer."""
    INPUT = 4
    """A data loader, or a framework's code that brings a batch to the device."""
    TEMPORARY = 5
    """A workspace, or code that clips gradients."""
    GRADIENT = 6
    """Code that accumulates or buckets gradients."""
    RECOMPUTE = 7
    """A forward inside a backward."""
    FORWARD = 8
    BACKWARD = 9
    OPTIMIZER = 10
    COPY = 11
    """A copy to the device outside of forward, backward and optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One allocation. ``made`` and ``freed`` are positions in the order of events."""

    origin: Origin
    made: int
    """-1: before the first event."""
    freed: int | None
    """None if it was held at the end of the recording."""
    freed_by: Origin
    """Also UNTOLD if it was not freed."""
    site: Hashable
    """Equal for allocations by the same code."""
    is_nested: bool = False
    """Whether something else made it inside a backward (parameters gathered for it, an optimizer's step in a hook)."""


UNKNOWN = "unknown"
_CERTAIN = {
    Origin.PARAMETER: "parameter",
    Origin.STATE: "optimizer_state",
    Origin.INPUT: "input",
    Origin.TEMPORARY: "temporary",
    Origin.GRADIENT: "gradient",
    Origin.RECOMPUTE: "activation",
}
_BACKWARD = frozenset({Origin.BACKWARD, Origin.GRADIENT, Origin.RECOMPUTE})
_OPTIMIZER = frozenset({Origin.OPTIMIZER, Origin.STATE})
_SILENT = frozenset({Origin.UNTOLD, Origin.TEMPORARY})
"""These come at any moment: they neither begin nor end a backward or a step of an optimizer."""


def categorize_allocations(allocations: Sequence[Allocation]) -> list[str]:
    """One of core.memory_snapshot.MEMORY_CATEGORIES for each allocation; they come in the order of ``made``."""
    passes, steps = _Runs(allocations, _BACKWARD), _Runs(allocations, _OPTIMIZER)
    repeated = _find_repeated_copies(allocations)
    found: list[str | None] = []
    for one in allocations:
        if one.origin in _CERTAIN:
            category: str | None = _CERTAIN[one.origin]
        elif one.origin is Origin.FORWARD:
            category = _judge_forward(one, passes)
        elif one.origin is Origin.BACKWARD:
            category = _judge_run(one, passes, "gradient")
        elif one.origin is Origin.OPTIMIZER:
            category = None if one.is_nested else _judge_run(one, steps, "optimizer_state")
        elif one.origin is Origin.COPY and one.site in repeated:
            category = "input"
        elif one.origin is not Origin.UNTOLD and one.made >= 0 and passes.holds_free(one):
            category = "activation"
        else:
            category = UNKNOWN
        found.append(category)
    # If the recording cut off an allocation, it is what the same code made at other times, if that was always the same.
    fates: dict[Hashable, set[str]] = {}
    for one, category in zip(allocations, found, strict=True):
        if category is not None:
            fates.setdefault((one.origin, one.site), set()).add(category)
    result = []
    for one, category in zip(allocations, found, strict=True):
        fate = fates.get((one.origin, one.site), set())
        result.append(category if category is not None else next(iter(fate)) if len(fate) == 1 else UNKNOWN)
    return result


class _Runs:
    """Stretches of allocations of some origins: the backward passes, or the steps of an optimizer."""

    __slots__ = ("_first", "_last", "_next", "_origins")

    def __init__(self, allocations: Sequence[Allocation], origins: frozenset[Origin]) -> None:
        self._origins = origins
        self._first: list[int] = []
        self._last: list[int] = []
        self._next: list[int | None] = []
        is_open = False
        for one in allocations:
            if one.made < 0 or one.is_nested or one.origin in _SILENT:
                continue
            if one.origin not in origins:
                if is_open:
                    self._next[-1] = one.made
                is_open = False
            elif is_open:
                self._last[-1] = one.made
            else:
                is_open = True
                self._first.append(one.made)
                self._last.append(one.made)
                self._next.append(None)

    def find_next(self, at: int) -> int | None:
        """Where the first stretch after ``at`` begins."""
        index = bisect_left(self._first, at)
        return self._first[index] if index < len(self._first) else None

    def find_around(self, at: int) -> tuple[int, int | None]:
        """(the last allocation of the stretch around ``at``, the first one after it that is not in it)."""
        index = bisect_left(self._last, at)
        return self._last[index], self._next[index]

    def find_first_end(self) -> int | None:
        """The first allocation that ends a stretch."""
        return next((end for end in self._next if end is not None), None)

    def holds_free(self, one: Allocation) -> bool:
        """Whether it was freed inside a stretch that began while it was held."""
        if one.freed is None:
            return False
        if one.freed_by in self._origins:
            return True
        began = self.find_next(one.made)
        return began is not None and began < one.freed <= self.find_around(began)[0]

    def contains(self, origin: Origin) -> bool:
        """Whether an origin is one of these."""
        return origin in self._origins


def _judge_forward(one: Allocation, passes: _Runs) -> str:
    if one.made < 0:  # older than the recording: whatever it is, it is not from the forward of a step that was seen
        return UNKNOWN
    begins = passes.find_next(one.made)
    if one.freed is None or (begins is not None and one.freed > begins) or passes.contains(one.freed_by):
        return "activation"
    return "temporary"


def _judge_run(one: Allocation, runs: _Runs, lasting: str) -> str | None:
    """``lasting`` if it outlived its stretch, temporary if it did not; None if that is not recorded."""
    if one.made < 0:
        ended = runs.find_first_end()
        return lasting if one.freed is None and ended is not None else None
    last, ended = runs.find_around(one.made)
    if one.freed is None:
        return None if ended is None else lasting
    if ended is not None and one.freed > ended:
        return lasting
    if one.freed < last or runs.contains(one.freed_by):
        return "temporary"
    # Freed after the last allocation of the stretch and before the next event: only what freed it can show that.
    return None if one.freed_by is Origin.UNTOLD else lasting


def _find_repeated_copies(allocations: Sequence[Allocation]) -> set[Hashable]:
    """Sites that copy again after a forward has run."""
    forwards = [one.made for one in allocations if one.origin is Origin.FORWARD and one.made >= 0]
    first: dict[Hashable, int] = {}
    found: set[Hashable] = set()
    for one in allocations:
        if one.origin is Origin.COPY and one.made >= 0:
            began = first.setdefault(one.site, one.made)
            ran = bisect_left(forwards, began)
            if ran < len(forwards) and forwards[ran] < one.made:
                found.add(one.site)
    return found
