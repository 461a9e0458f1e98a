"""'wait:warmup:active[:repeat]' -> TracePlan: the steps that a profiler waits for, warms up in and records."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UsageError

WAIT, WARMUP, RECORD, SAVE = "wait", "warmup", "record", "save"
"""The profiler's action in a step. SAVE: the step is recorded, and at its end the recording is written."""

_FORM = "wait:warmup:active[:repeat], such as 5:2:3 or 5:2:3:2"
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePlan:
    """Counts of steps. Steps are numbered from 1; ``skip_first`` steps come before the first cycle.

    A cycle is ``wait`` steps without the profiler, ``warmup`` steps with it on but discarded, and ``active`` recorded
    steps. ``repeat`` cycles follow each other; 0 means that they never end.
    """

    wait: int = 0
    warmup: int = 0
    active: int
    repeat: int = 1
    skip_first: int = 0

    def __post_init__(self) -> None:
        for name in ("wait", "warmup", "repeat", "skip_first"):
            if getattr(self, name) < 0:
                raise UsageError(f"a trace plan with {name} {getattr(self, name)}; give 0 or more steps")
        if self.active < 1:
            raise UsageError(f"a trace plan with active {self.active} records nothing; give 1 or more")

    @property
    def cycle(self) -> int:
        """Steps of one cycle."""
        return self.wait + self.warmup + self.active

    def act_in(self, step: int) -> str:
        """The profiler's action in ``step`` (from 1): WAIT, WARMUP, RECORD or SAVE."""
        place = step - 1 - self.skip_first
        if place < 0 or (self.repeat and place >= self.repeat * self.cycle):
            return WAIT
        place %= self.cycle
        if place < self.wait:
            return WAIT
        if place < self.wait + self.warmup:
            return WARMUP
        return SAVE if place == self.cycle - 1 else RECORD

    def recorded_steps(self, number: int) -> tuple[int, int]:
        """First and last step (from 1) that cycle ``number`` (from 0) records."""
        last = self.skip_first + (number + 1) * self.cycle
        return last - self.active + 1, last

    def is_over(self, step: int) -> bool:
        """True if nothing is left to do in ``step`` and after it."""
        return self.repeat > 0 and step > self.recorded_steps(self.repeat - 1)[1]

    def describe(self) -> str:
        """The plan in words, with the numbers of the recorded steps.

        >>> TracePlan(wait=5, warmup=2, active=3).describe()
        'waits 5, warms up 2, records 3 steps, 1 time: steps 8-10'
        >>> TracePlan(wait=1, active=1, repeat=0, skip_first=10).describe()
        'skips 10, waits 1, warms up 0, records 1 step, again and again: steps 12, 14, 16, ...'
        """
        shown = self.repeat if 0 < self.repeat <= _MOST_SHOWN + 1 else _MOST_SHOWN
        steps = [_span(*self.recorded_steps(number)) for number in range(shown)]
        if self.repeat == 0:
            steps.append("...")
        elif self.repeat > shown:
            steps += ["...", _span(*self.recorded_steps(self.repeat - 1))]
        times = "again and again" if self.repeat == 0 else f"{self.repeat} time{'s' * (self.repeat != 1)}"
        skips = f"skips {self.skip_first}, " if self.skip_first else ""
        word = "step" if self.repeat == 1 and self.active == 1 else "steps"
        return (
            f"{skips}waits {self.wait}, warms up {self.warmup}, records {self.active} step{'s' * (self.active != 1)}, "
            f"{times}: {word} {', '.join(steps)}"
        )


def parse_trace_plan(text: str) -> TracePlan:
    """The plan that ``--trace`` names. Raises UsageError with the accepted form.

    wait + warmup must be at least 1, because hotloop sees a training from the end of its first step on.

    >>> parse_trace_plan("5:2:3").describe()
    'waits 5, warms up 2, records 3 steps, 1 time: steps 8-10'
    """
    parts = text.split(":")
    if len(parts) not in (3, 4) or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--trace {text!r}: write {_FORM}")
    wait, warmup, active, repeat = (int(part) for part in (*parts, "1")[:4])
    if repeat < 1:
        raise UsageError(f"--trace {text!r}: repeat must be 1 or more; unlimited traces would fill the disk")
    if wait + warmup < 1:
        raise UsageError(f"--trace {text!r}: the first step cannot be recorded; start with 1:0 or 0:1")
    return TracePlan(wait=wait, warmup=warmup, active=active, repeat=repeat)


def parse_trace_ranks(text: str) -> frozenset[int] | None:
    """The ranks that ``--trace-ranks`` names; None for all of them.

    >>> sorted(parse_trace_ranks("0,3-5")), parse_trace_ranks("all")
    ([0, 3, 4, 5], None)
    """
    if text.strip() == "all":
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(f"--trace-ranks {text!r}: write ranks such as 0,1 or 0-3, or all")
        ranks.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(ranks)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
