"""A command in a working copy, perhaps with a signal at a moment -> one ObservedRun: its steps, saves and end."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.recording import CLOSED_BY_BACKWARD
from hotloop.core.strategy import Strategy

from .trials import Bench, TrialLimits, last_line, make_request, read_tail, run_supervised

MOST_MARK_BYTES = 64 << 20
# Where within a step, a save or an evaluation the signal is sent.
DELAY_RATIO = (0.2, 0.8)
# A training is not interrupted this few steps before its end: too few would be left to compare.
LEFT_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSpan:
    """``begin_ns`` to ``end_ns`` (None: it did not end) after ``step`` whole steps. ``mark`` and ``number`` are the
    line to wait for when its middle is to be met; a save of several files has several lines. ``size_bytes`` is 0 where
    it is unknown."""

    begin_ns: int
    end_ns: int | None
    step: int
    mark: str
    number: int
    size_bytes: int = 0
    parts: tuple[ObservedSpan, ...] = ()

    @property
    def length_s(self) -> float:
        return 0.0 if self.end_ns is None else (self.end_ns - self.begin_ns) * 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """``how`` it ended is the supervisor's word; ``exit_code`` as a shell shows it, None where it was ended.

    ``losses`` has one entry for each step, ``step_ns`` when each ended. ``sent_ns`` is when the signal was sent.
    """

    how: str
    exit_code: int | None
    began_ns: int = 0
    ended_ns: int = 0
    sent_ns: int | None = None
    step_ns: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()
    saves: tuple[ObservedSpan, ...] = ()
    evaluations: tuple[ObservedSpan, ...] = ()
    outside: tuple[str, ...] = ()
    last_line: str = ""

    @property
    def duration_s(self) -> float:
        return (self.ended_ns - self.began_ns) * 1e-9

    @property
    def is_whole(self) -> bool:
        """Whether it ended by itself, and well."""
        return self.how == "exited" and self.exit_code == 0

    def count_steps(self, until_ns: int) -> int:
        return sum(one <= until_ns for one in self.step_ns)

    def name_moment(self) -> str:
        """Where the training was when the signal was sent."""
        assert self.sent_ns is not None
        for name, spans in (("save", self.saves), ("evaluation", self.evaluations)):
            if any(one.begin_ns <= self.sent_ns and (one.end_ns or self.ended_ns) >= self.sent_ns for one in spans):
                return name
        return "step" if self.count_steps(self.sent_ns) else "warm-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSignal:
    """A moment and a signal: ``delay_s`` after the line ``mark`` number ``number`` of the training. ``hold``: the
    ``count``-th save of a process waits for the signal after that many ``bytes``."""

    signal: str
    mark: str
    number: int
    delay_s: float
    hold: Mapping[str, int] | None = None


def rehearse(
    bench: Bench,
    copy: Path,
    name: str,
    begun_wall_s: float,
    limits: TrialLimits,
    grace_s: float,
    planned: PlannedSignal | None = None,
) -> ObservedRun:
    """Run the command once in a working copy that may hold what an earlier run left.

    The ``planned`` signal goes to all processes, SIGTERM to the first alone; what runs ``grace_s`` later is killed.
    """
    run_folder = bench.folder / "trials" / name
    (run_folder / "processes").mkdir(parents=True)
    options = {
        "is_rehearsal": True,
        "folder": str(run_folder),
        "root": str(bench.folder),
        "begun_wall_s": begun_wall_s,
        "hold": None if planned is None else planned.hold,
    }
    wanted = {
        "number": None if planned is None else getattr(signal, f"SIG{planned.signal}").value,
        "kind": "" if planned is None else planned.mark,
        "count": 0 if planned is None else planned.number,
        "delay_s": 0.0 if planned is None else planned.delay_s,
        "everyone": planned is not None and planned.signal != "TERM",
        "grace_s": grace_s,
        "most_steps": limits.steps,
    }
    with bench.environment(Strategy(), run_folder, options) as environment:
        request = make_request(bench, limits, copy, run_folder, environment)
        answer = run_supervised({**request, "interruption": wanted})
    return read_observed(run_folder, answer)


@dataclass(slots=True)
class _Marks:
    """The content of one process's lines."""

    rows: list[tuple[int, float | None, int]] = field(default_factory=list)
    rank: int = 0
    saves: list[ObservedSpan] = field(default_factory=list)
    evaluations: list[ObservedSpan] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[tuple[int, float | None]]:
        """Until an optimizer is seen every backward closes a row: these belong to the first step."""
        first = next((at for at, row in enumerate(self.rows) if row[2] != CLOSED_BY_BACKWARD), 0)
        begun = [loss for _, loss, _ in self.rows[: first + 1] if loss is not None]
        whole = [(ns, loss) for ns, loss, _ in self.rows[first:]]
        if first and begun:
            whole[0] = (whole[0][0], sum(begun))
        return whole


def read_observed(run_folder: Path, answer: dict[str, Any]) -> ObservedRun:
    """The lines of all processes: steps of the first rank, saves of any."""
    marks = [_read_marks(path) for path in sorted(run_folder.glob("marks-*"))]
    lead = max(marks, key=lambda one: (len(one.rows) > 0, -one.rank, len(one.rows)), default=_Marks())
    steps = lead.steps
    ends = [ns for ns, _ in steps]
    code, number = answer.get("exit_code"), answer.get("signal")
    return ObservedRun(
        how=answer["how"],
        exit_code=128 + number if number is not None else code,
        began_ns=answer.get("began_ns", 0),
        ended_ns=answer.get("ended_ns", 0),
        sent_ns=answer.get("sent_ns"),
        step_ns=tuple(ends),
        losses=tuple(loss for _, loss in steps),
        saves=tuple(_join_spans([one for process in marks for one in process.saves], ends)),
        evaluations=tuple(_join_spans(lead.evaluations, ends)),
        outside=tuple(dict.fromkeys(path for process in marks for path in process.outside)),
        last_line=last_line(read_tail(run_folder / "stderr.log") or read_tail(run_folder / "stdout.log"))
        or str(answer["detail"]),
    )


def _read_marks(path: Path) -> _Marks:
    found = _Marks()
    counts: dict[str, int] = {}
    begun: dict[str, tuple[int, int]] = {}
    with path.open("rb") as file:
        lines = file.read(MOST_MARK_BYTES).decode("utf-8", "replace").split("\n")[:-1]
    for line in lines:
        time_ns, kind, *rest = line.split(" ", 2)
        now_ns = int(time_ns)
        counts[kind] = number = counts.get(kind, 0) + 1
        if kind == "row":
            loss, closed_by, rank = rest[0].split()
            found.rows.append((now_ns, None if loss == "None" else float(loss), int(closed_by)))
            found.rank = int(rank)
        elif kind in ("save", "eval"):
            begun[kind] = (now_ns, number)
        elif kind in ("saved", "train"):
            opening = "save" if kind == "saved" else "eval"
            spans = found.saves if kind == "saved" else found.evaluations
            span = _span(opening, *begun.pop(opening, (now_ns, number)), now_ns)
            spans.append(replace(span, size_bytes=int(rest[0])) if rest else span)
        elif kind == "wrote":
            found.saves.append(_span("wrote", now_ns, number, now_ns))
        elif kind == "outside":
            found.outside.append(rest[0])
    for opening, spans in (("save", found.saves), ("eval", found.evaluations)):
        if opening in begun:
            spans.append(_span(opening, *begun[opening], None))
    return found


def _span(mark: str, begin_ns: int, number: int, end_ns: int | None) -> ObservedSpan:
    return ObservedSpan(begin_ns=begin_ns, end_ns=end_ns, step=0, mark=mark, number=number)


def _join_spans(parts: list[ObservedSpan], ends: Sequence[int]) -> Iterator[ObservedSpan]:
    """Everything between the same two steps is one save, or one evaluation."""
    by_step: dict[int, list[ObservedSpan]] = {}
    for part in sorted(parts, key=lambda one: one.begin_ns):
        by_step.setdefault(sum(end <= part.begin_ns for end in ends), []).append(part)
    for step, joined in by_step.items():
        closed = [one.end_ns for one in joined if one.end_ns is not None]
        yield ObservedSpan(
            begin_ns=joined[0].begin_ns,
            end_ns=max(closed) if len(closed) == len(joined) else None,
            step=step,
            mark=joined[0].mark,
            number=joined[0].number,
            parts=tuple(joined),
        )


def plan_signal(aim: str, name: str, whole: ObservedRun, draw: Random) -> PlannedSignal | None:
    """A drawn moment of that kind for the signal ``name``; None where the undisturbed run had none."""
    count, ratio = len(whole.step_ns), draw.uniform(*DELAY_RATIO)
    if not count:
        return None
    if aim == "warm-up":
        delay_s = ratio * (whole.step_ns[0] - whole.began_ns) * 1e-9
        return PlannedSignal(signal=name, mark="start", number=0, delay_s=delay_s)
    if aim == "step":
        saved = [one.step for one in whole.saves if one.end_ns is not None and one.step < count - LEFT_STEPS]
        first = min(saved[0] + 1 if saved else 2, max(1, count - LEFT_STEPS))
        step = draw.randint(first, max(first, count - LEFT_STEPS))
        return PlannedSignal(signal=name, mark="row", number=step, delay_s=ratio * find_step_s(whole))
    spans = [
        one
        for one in (whole.saves if aim == "save" else whole.evaluations)
        if one.end_ns is not None and 0 < one.step <= count - LEFT_STEPS
    ]
    if not spans:
        return None
    span = draw.choice(spans[1:] or spans)
    at = draw.choices(range(len(span.parts)), [1e-6 + part.size_bytes + part.length_s for part in span.parts])[0]
    if span.parts[at].size_bytes:
        hold = {"count": span.parts[at].number, "bytes": max(1, round(ratio * span.parts[at].size_bytes))}
        return PlannedSignal(signal=name, mark="held", number=1, delay_s=0.0, hold=hold)
    # The shortest that was seen: a busy machine made the others longer.
    shortest_s = min(part.length_s for one in spans for part in one.parts[at : at + 1])
    return PlannedSignal(
        signal=name, mark=span.parts[at].mark, number=span.parts[at].number, delay_s=ratio * shortest_s
    )


def find_step_s(run: ObservedRun) -> float:
    """Median time from the end of a step to that of the next; 0 where there are not two."""
    gaps = [(after - before) * 1e-9 for before, after in zip(run.step_ns, run.step_ns[1:], strict=False)]
    return median(gaps) if gaps else 0.0


@contextmanager
def lead_elsewhere(folder: Path, target: Path) -> Iterator[None]:
    """What is written to ``folder`` lands in ``target``: a link has its name meanwhile. It must be empty, or absent,
    so that no file of the user's is in reach. Raises UsageError."""
    existed = check_empty(folder)
    target.mkdir(parents=True)
    try:
        if existed:
            folder.rmdir()
        folder.symlink_to(target)
    except OSError as error:
        raise UsageError(f"--checkpoints {folder}: cannot lead it into a working copy: {error.strerror}") from error
    try:
        yield
    finally:
        if folder.is_symlink():
            folder.unlink()
        if existed and not folder.exists():
            folder.mkdir()


def check_empty(folder: Path) -> bool:
    """Whether the folder exists. Raises UsageError where it holds anything, or is not a folder."""
    if not folder.exists() and not folder.is_symlink():
        return False
    if folder.is_symlink() or not folder.is_dir() or any(folder.iterdir()):
        raise UsageError(
            f"--checkpoints {folder} is outside of this folder and contains files that the command would overwrite; "
            "let the command write to an empty folder, and name that folder"
        )
    return True
