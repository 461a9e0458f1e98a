"""What one forward kept for backward, unit by unit, and a budget -> the units whose activations are computed again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TOLERANCE_RATIO = 0.05
"""A plan within this distance of its budget has reached it."""

MOST_PARTS = 4
"""Parts of a unit that are chosen singly; all their combinations are tried."""

MOST_EXACT = 200
"""Plans whose peak is worked out exactly, of those whose sums come closest."""


@dataclass(frozen=True, slots=True)
class KeptStorage:
    """A storage that the forward kept. ``path``: the units inside which it was, outermost first. ``position``: how many
    units had been entered by then."""

    key: int
    size_bytes: int
    path: tuple[int, ...]
    position: int


@dataclass(frozen=True, slots=True)
class UnitCall:
    """A unit's forward. ``path`` ends in the unit itself; ``inputs`` are the storages of its tensors (key, bytes)."""

    path: tuple[int, ...]
    position: int
    inputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """All that one forward kept, and the calls of its units in order."""

    kept: tuple[KeptStorage, ...]
    calls: tuple[UnitCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputePlan:
    """``again``: units whose forward is computed again. ``peak_bytes``: the most that is kept at any time of a step."""

    again: frozenset[int]
    total_bytes: int
    peak_bytes: int

    @property
    def peak_ratio(self) -> float:
        return self.peak_bytes / self.total_bytes


def total_bytes(footprint: Footprint) -> int:
    """Of the forward as it is, each storage counted once."""
    return sum({one.key: one.size_bytes for one in footprint.kept}.values())


def peak_bytes(footprint: Footprint, again: frozenset[int]) -> int:
    """The most bytes that are kept at any time when ``again`` are computed again.

    Either at the end of forward, or in backward while a unit is there again: then what was kept before it is still
    there, and what came after it is gone.
    """
    sizes: dict[int, int] = {}
    since: dict[int, int] = {}
    returning: list[tuple[int, set[int]]] = []

    def keep(key: int, size_bytes: int, position: int) -> None:
        sizes[key] = size_bytes
        since[key] = min(position, since.get(key, position))

    for one in footprint.kept:
        if again.isdisjoint(one.path):
            keep(one.key, one.size_bytes, one.position)
    for call in footprint.calls:
        if call.path[-1] in again and again.isdisjoint(call.path[:-1]):
            for key, size_bytes in call.inputs:
                keep(key, size_bytes, call.position)
            returning.append((call.position, set()))
    most = sum(sizes.values())
    inside: dict[int, dict[int, int]] = {position: {} for position, _ in returning}
    for one in footprint.kept:
        if not again.isdisjoint(one.path):
            position = _entered(footprint, one, again)
            if position in inside:
                inside[position][one.key] = one.size_bytes
    for position, own in inside.items():
        before = {key: size for key, size in sizes.items() if since[key] <= position}
        most = max(most, sum((before | own).values()))
    return most


def plan_budget(footprint: Footprint, budget_ratio: float) -> RecomputePlan:
    """The units to compute again so that the peak is ``budget_ratio`` of what the plain forward keeps.

    Early units are taken first: when backward comes to them, what the later ones kept is gone, so that computing them
    again does not add to the peak. Where the budget is out of reach the plan is the one of least peak.
    """
    total = total_bytes(footprint)
    outer = list(dict.fromkeys(call.path[0] for call in footprint.calls if len(call.path) == 1))
    options = {unit: _options(footprint, unit) for unit in outer}
    target = budget_ratio * total
    shortlist = _shortlist(outer, options, _kept_apart(footprint), target)
    plans = [
        RecomputePlan(again=again, total_bytes=total, peak_bytes=peak_bytes(footprint, again))
        for again in (*shortlist, frozenset(outer))
    ]

    def distance(plan: RecomputePlan) -> tuple[float, int, int]:
        over = plan.peak_ratio - budget_ratio
        # A little above costs as much as twice that below; in steps of half a point, then the least work.
        return (round(200 * max(2 * over, -over)), len(plan.again), plan.peak_bytes)

    return min(plans, key=distance)


def _entered(footprint: Footprint, one: KeptStorage, again: frozenset[int]) -> int:
    """Position of the call of the outermost unit of ``again`` in which a storage was kept."""
    unit = next(part for part in one.path if part in again)
    return max(
        (call.position for call in footprint.calls if call.path[-1] == unit and call.position <= one.position),
        default=-1,
    )


def _kept_apart(footprint: Footprint) -> int:
    """Bytes kept outside all units."""
    return sum({one.key: one.size_bytes for one in footprint.kept if not one.path}.values())


def _options(footprint: Footprint, unit: int) -> list[tuple[int, frozenset[int]]]:
    """(bytes that the unit keeps, what of it is computed again): as it is first, then ever less, the whole last."""
    own = Footprint(
        kept=tuple(one for one in footprint.kept if one.path[:1] == (unit,)),
        calls=tuple(call for call in footprint.calls if call.path[0] == unit),
    )
    plain = _end_bytes(own, frozenset())
    freed = {
        call.path[-1]: plain - _end_bytes(own, frozenset({call.path[-1]})) for call in own.calls if len(call.path) > 1
    }
    parts = sorted((part for part in freed if freed[part] > 0), key=lambda part: (-freed[part], part))[:MOST_PARTS]
    found: dict[int, frozenset[int]] = {}
    for count in range(1, len(parts) + 1):
        for some in itertools.combinations(parts, count):
            found.setdefault(_end_bytes(own, frozenset(some)), frozenset(some))
    whole = _end_bytes(own, frozenset({unit}))
    middle = sorted(((size, some) for size, some in found.items() if whole < size < plain), reverse=True, key=_first)
    return [(plain, frozenset()), *middle, (whole, frozenset({unit}))]


def _first(entry: tuple[int, frozenset[int]]) -> int:
    return entry[0]


def _end_bytes(footprint: Footprint, again: frozenset[int]) -> int:
    """Kept at the end of forward."""
    sizes = {one.key: one.size_bytes for one in footprint.kept if again.isdisjoint(one.path)}
    for call in footprint.calls:
        if call.path[-1] in again and again.isdisjoint(call.path[:-1]):
            sizes.update(call.inputs)
    return sum(sizes.values())


def _shortlist(
    units: Sequence[int], options: dict[int, list[tuple[int, frozenset[int]]]], apart_bytes: int, target_bytes: float
) -> Iterable[frozenset[int]]:
    """Plans of the form: the first units wholly, some more in part, the others not; those whose sums fit best."""
    ranks = max((len(options[unit]) for unit in units), default=0)
    plain = _running([options[unit][0][0] for unit in units])
    whole = _running([options[unit][-1][0] for unit in units])
    found: list[tuple[float, int, int, int]] = []
    for rank in range(1, max(2, ranks)):
        part = _running([options[unit][min(rank, len(options[unit]) - 1)][0] for unit in units])
        for first in range(len(units) + 1):
            for last in range(first, len(units) + 1):
                size = apart_bytes + whole[first] + part[last] - part[first] + plain[-1] - plain[last]
                found.append((abs(size - target_bytes), rank, first, last))
    for _, rank, first, last in sorted(found)[:MOST_EXACT]:
        again: set[int] = set()
        for index, unit in enumerate(units[:last]):
            chosen = options[unit][-1] if index < first else options[unit][min(rank, len(options[unit]) - 1)]
            again |= chosen[1]
        yield frozenset(again)


def _running(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)]
