"""Stack samples of a recording -> the lines of the user's code that each time field was spent in.

Samples from outside (``hotloop run``, if the system allows it) show where the thread was. A sampler inside the process
is a thread and waits for the interpreter's lock. Python code that holds the lock for less than the switch interval (5
ms) is over when the sample is taken: such a late sample falls on the next line that releases the lock. Code that holds
the lock longer loses it where it is. So late samples are counted where the lock was taken away in the same stretch of
code, if it was; otherwise they stay, and the line reports which share of its samples may belong to the code before it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hotloop.core.analysis import Line
from hotloop.core.findings import Where
from hotloop.core.recording import OTHER_WAIT_FIELD, SAMPLED_FIELDS
from hotloop.core.stack_layout import INTERPRETED

from .facts import MAX_ITEMS, Fact, last_of_kind, of_kind, read_count, read_items, read_where
from .source import SourceFiles, block_around, calls_around, runs_python, walks_gradients

MAX_LINES = 12
"""Lines kept of each time field; the others are not named but still count in the shares."""
MAX_STACK_DEPTH = 64
MAX_WAYS = 8
"""Stacks kept of each line: a line of a model is reached from every place that calls the model."""


INTERPRETED_RATIO, FEWEST_OWN_SAMPLES = 0.1, 20
"""Share of a function's own samples on instructions that call nothing, from which the function runs Python alone."""

Stack = tuple[Where, ...]
Place = tuple[Stack, str]


@dataclass(frozen=True, slots=True)
class SampledLines:
    """``by_field`` are the lines of every time field, largest share first; ``samples`` the samples of every field."""

    by_field: Mapping[str, tuple[Line, ...]]
    samples: Mapping[str, int]


def collect_lines(
    facts: Sequence[Fact],
    first_row: int,
    last_row: int,
    files: SourceFiles,
    base_folder: str,
    *,
    trains_on_others: bool = False,
) -> SampledLines:
    """The lines seen while rows ``first_row..last_row`` were recorded (all lines if no sample is among them).

    Waits for a loader that does not feed backward have their own field, OTHER_WAIT_FIELD, unless the training's steps
    wait for such a loader too (``trains_on_others``).
    """
    samples = of_kind(facts, "samples")
    inside = [fact for fact in samples if _lies_within(fact, first_row, last_row)]
    counts: dict[str, Counter[Place]] = {}
    for fact in inside or samples:
        for name, places, leaf, count in _read_counts(fact):
            if name == OTHER_WAIT_FIELD and trains_on_others:
                name = "input_wait_ns"
            counts.setdefault(name, Counter())[_stack_of(places, files, base_folder), leaf] += count
    return SampledLines(
        by_field=_mark_saving(
            {name: _largest_lines(counts[name], files) for name in SAMPLED_FIELDS if name in counts}, files
        ),
        samples={name: places.total() for name, places in counts.items()},
    )


_ENVIRONMENT = re.compile(
    r"(?i)(^|[_./])(rollouts?|(vec_?)?envs?|environments?|gym(nasium)?|episodes?|self_?play)(\d*)($|[_./])"
)
_EVALUATES = re.compile(r"(?i)eval|valid|(^|_)test")


def plays_environment(facts: Sequence[Fact]) -> bool:
    """Whether most stack samples after forwards without gradients show an environment being played.

    Judged by the names of functions and files on the stack, if none of them evaluates: the training uses the data of a
    rollout, whatever mode the model is in meanwhile.
    """
    played = seen = 0
    for fact in of_kind(facts, "samples"):
        for name, places, _, count in _read_counts(fact):
            if name != "after_nograd_ns":
                continue
            seen += count
            names = [text for place in places for text in (place.name, os.path.basename(place.file))]
            if not any(_EVALUATES.search(place.name) for place in places):
                played += count if any(_ENVIRONMENT.search(text) for text in names) else 0
    return 2 * played > seen


def collect_thread_lines(
    facts: Sequence[Fact], files: SourceFiles, base_folder: str
) -> tuple[tuple[Line, ...], float | None]:
    """Lines of the script in threads other than the one that trains, largest share first, and the average number of
    such threads at work at a time; None if nobody looked."""
    fact = last_of_kind(facts, "threads")
    looks = read_count(fact, "looks") if fact is not None else None
    if fact is None or not looks:
        return (), None
    lines = _collect((fact,), files, base_folder)
    return lines, sum(line.samples for line in lines) / looks


def collect_start_lines(facts: Sequence[Fact], files: SourceFiles, base_folder: str) -> tuple[Line, ...]:
    """The lines seen between the import of torch and the first step, largest share first."""
    return _collect(of_kind(facts, "start"), files, base_folder)


def _collect(facts: Sequence[Fact], files: SourceFiles, base_folder: str) -> tuple[Line, ...]:
    counts: Counter[Place] = Counter()
    for fact in facts:
        for _, places, leaf, count in _read_counts(fact):
            counts[_stack_of(places, files, base_folder), leaf] += count
    return _largest_lines(counts, files) if counts else ()


def _interpreted_functions(by_place: Mapping[Where, Counter[Place]]) -> frozenset[tuple[str, str]]:
    """The functions whose own samples are often on instructions that call nothing. An operator, even on a few numbers,
    takes about ten times as long as the instructions around it."""
    own: Counter[tuple[str, str]] = Counter()
    interpreted: Counter[tuple[str, str]] = Counter()
    for where, stacks in by_place.items():
        for (_, leaf), count in stacks.items():
            is_interpreted = leaf.endswith(INTERPRETED)
            if leaf.startswith("__main__:"):
                own[where.file, where.function] += count
                interpreted[where.file, where.function] += count if is_interpreted else 0
    return frozenset(
        key
        for key, count in own.items()
        if count >= FEWEST_OWN_SAMPLES and interpreted[key] >= INTERPRETED_RATIO * count
    )


def _mark_saving(by_field: dict[str, tuple[Line, ...]], files: SourceFiles) -> dict[str, tuple[Line, ...]]:
    """The lines, with those in a block that saves marked as such."""
    blocks = []
    for saving in {line.where for line in by_field.get("checkpoint_ns", ())}:
        module = files.module(saving.file)
        block = None if module is None else block_around(module, saving.line)
        blocks += [(saving.file, saving.function, block)] if block is not None else []

    def is_beside(where: Where) -> bool:
        return any((where.file, where.function) == (f, n) and where.line in block for f, n, block in blocks)

    return {
        name: tuple(replace(line, beside_save=True) if is_beside(line.where) else line for line in lines)
        for name, lines in by_field.items()
    }


def _lies_within(fact: Fact, first_row: int, last_row: int) -> bool:
    """True when most of the rows that a fact covers are among the given ones."""
    rows = read_items(fact, "rows")
    if len(rows) != 2 or not all(isinstance(r, int) for r in rows):
        return False
    middle: float = (rows[0] + rows[1]) / 2
    return first_row <= middle < last_row + 1


def _read_counts(fact: Fact) -> Iterator[tuple[str, list[Where], str, int]]:
    """(time field, frames from the outermost on, innermost frame of any kind, samples)."""
    for item in read_items(fact, "counts"):
        if not isinstance(item, (list, tuple)) or len(item) != 4:
            continue
        name, frames, leaf, count = item
        if name not in SAMPLED_FIELDS or not isinstance(frames, (list, tuple)) or type(count) is not int:
            continue
        if 0 < count < 1 << 40:
            places = [where for frame in frames[-MAX_STACK_DEPTH:] if (where := read_where(frame)) is not None]
            yield name, places, leaf[:MAX_ITEMS] if isinstance(leaf, str) else "", count


def _stack_of(places: Sequence[Where], files: SourceFiles, base_folder: str) -> Stack:
    return tuple(files.qualify(_absolute(place, base_folder)) for place in places)


def _absolute(place: Where, base_folder: str) -> Where:
    if place.file.startswith("<") or os.path.isabs(place.file) or not base_folder:
        return place
    return replace(place, file=os.path.normpath(os.path.join(base_folder, place.file)))


def _largest_lines(places: Counter[Place], files: SourceFiles) -> tuple[Line, ...]:
    total = places.total()
    by_place: dict[Where, Counter[Place]] = {}
    for (stack, leaf), count in places.items():
        if stack:
            by_place.setdefault(stack[-1], Counter())[stack, leaf] = count
    counts = {where: stacks.total() for where, stacks in by_place.items()}
    interpreted = _interpreted_functions(by_place)
    ranked = sorted(by_place.items(), key=lambda item: (-counts[item[0]], item[0].file, item[0].line))
    lines = []
    for where, stacks in ranked[:MAX_LINES]:
        leaves: Counter[str] = Counter()
        ways: dict[Stack, float] = {}
        for (stack, leaf), count in stacks.items():
            leaves[leaf.removesuffix(INTERPRETED)] += count
            ways[stack] = ways.get(stack, 0.0) + count / total
        leaf, module = max(leaves, key=leaves.__getitem__), files.module(where.file)
        is_torch = leaf.partition(":")[0].split(".")[0] == "torch"
        ranked_ways = sorted(ways.items(), key=lambda way: -way[1])[:MAX_WAYS]
        lines.append(
            Line(
                where=where,
                share_ratio=counts[where] / total,
                samples=counts[where],
                text=files.text(where),
                stack=ranked_ways[0][0],
                ways=tuple(ranked_ways),
                leaf=leaf,
                calls=() if module is None else calls_around(module, where.line),
                walks_gradients=module is not None and walks_gradients(module, where.line),
                is_python=not is_torch
                and (
                    (where.file, where.function) in interpreted
                    or (module is not None and runs_python(module, where.line) is True)
                ),
                before_draws_ratio=sum(part for stack, part in ways.items() if files.is_before_draws(stack)),
            )
        )
    return tuple(lines)
