"""Findings -> the lines of the script's own code that no finding names, and the time that findings leave of each phase.

A line of the script is its own code if no finding names it. Between phases, that is every line except what each loop
does (``zero_grad``, a scheduler). Inside a phase, and between forward and backward, where the loss is computed, it is
only a line that runs nothing but Python: everything else there counts as the model's own work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotloop.core.analysis import Line, RankAnalysis
from hotloop.core.findings import Finding, Kind, Where
from hotloop.core.phases import PHASES
from hotloop.core.recording import GAP_FIELDS
from hotloop.judge.diagnose.lines import (
    BOOKKEEPING,
    EXCHANGING,
    FEWEST_SAMPLES,
    SAVING,
    VALIDATING,
    field_lines,
    loop_places,
    own_ns,
)

PHASE_FIELDS = {"forward_ns": "forward", "backward_ns": "backward", "optimizer_ns": "optimizer"}
_OF_EVERY_LOOP = frozenset({BOOKKEEPING, EXCHANGING, VALIDATING, SAVING})
_NEEDS_PROOF = frozenset({*PHASE_FIELDS, "after_forward_ns"})


@dataclass(frozen=True, slots=True)
class OwnLine:
    """A line of the script's own code in one time field; ``ns`` is per steady step."""

    field: str
    line: Line
    ns: float

    @property
    def phase(self) -> str:
        return PHASE_FIELDS.get(self.field, "other")


def own_code(rank: RankAnalysis, findings: Sequence[Finding]) -> tuple[OwnLine, ...]:
    """The lines that no finding names, largest first; their sum is at most what the findings leave of a phase."""
    left_ns = unnamed_ns(rank, findings)
    lines = list(_unnamed_lines(rank, findings))
    kept = []
    for phase in ("other", *PHASE_FIELDS.values()):
        of_phase = [one for one in lines if one.phase == phase]
        total_ns = sum(one.ns for one in of_phase)
        if sum(one.line.samples for one in of_phase) < FEWEST_SAMPLES or total_ns <= 0:
            continue
        scale = min(1.0, left_ns[phase] / total_ns)
        kept += [OwnLine(one.field, one.line, scale * one.ns) for one in of_phase]
    return tuple(sorted(kept, key=lambda one: -one.ns))


def unnamed_ns(rank: RankAnalysis, findings: Sequence[Finding]) -> dict[str, float]:
    """What the findings leave of each phase, per step. A finding without times by phase has the time of the lines that
    it names; if it names no line that was seen, its cost comes out of all phases alike (a collection may be in any)."""
    named_ns = dict.fromkeys(PHASES, 0.0)
    timed = [finding for finding in _specific(findings) if finding.time_ns]
    for finding in timed:
        for phase, ns in (finding.time_ns or {}).items():
            named_ns[phase] = named_ns.get(phase, 0.0) + ns
    others = [finding for finding in _specific(findings) if not finding.time_ns]
    of_timed, of_others = _Places(rank, timed), _Places(rank, others)
    held = [one for one, _ in _lines(rank) if of_others.hold(one.line) and not of_timed.hold(one.line)]
    # Such a finding claims at most its own cost from these lines, because they do other work too.
    scale = min(1.0, sum(finding.cost_ns or 0 for finding in others) / max(1.0, sum(one.ns for one in held)))
    for one in held:
        named_ns[one.phase] += scale * one.ns
    left_ns = {phase: max(0.0, rank.breakdown.mean_ns(phase) - named_ns[phase]) for phase in PHASES}
    unplaced = [finding for finding in others if not any(_Places(rank, [finding]).hold(one.line) for one in held)]
    cost_ns = float(sum(finding.cost_ns or 0 for finding in unplaced))
    rest = max(0.0, 1.0 - cost_ns / max(1.0, sum(left_ns.values())))
    return {phase: ns * rest for phase, ns in left_ns.items()}


def _lines(rank: RankAnalysis) -> Iterator[tuple[OwnLine, str]]:
    """The lines of the gaps and of the phases in which a script's own code may run, with their kinds."""
    for name in (*GAP_FIELDS, *PHASE_FIELDS):
        field_ns = own_ns(rank, name)
        for line, kind in field_lines(rank, name):
            yield OwnLine(name, line, line.share_ratio * field_ns), kind


def _unnamed_lines(rank: RankAnalysis, findings: Sequence[Finding]) -> Iterator[OwnLine]:
    named = _Places(rank, list(_specific(findings)))
    for one, kind in _lines(rank):
        is_own = kind not in _OF_EVERY_LOOP and (one.line.is_python or one.field not in _NEEDS_PROOF)
        if is_own and not named.hold(one.line):
            yield one


class _Places:
    """The places of some findings: their lines, and their functions except those that hold the training loop."""

    def __init__(self, rank: RankAnalysis, findings: Sequence[Finding]) -> None:
        self._lines = {(where.file, where.line) for one in findings for where in one.where}
        self._functions = {(where.file, where.function) for one in findings for where in one.where} - loop_places(rank)

    def hold(self, line: Line) -> bool:
        stack = line.stack or (line.where,)
        return (line.where.file, line.where.line) in self._lines or any(
            (where.file, where.function) in self._functions for where in stack
        )


def _specific(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings that name a cause of time in the steady step."""
    return (one for one in findings if one.kind is Kind.FAULT and one.base == "steady" and (one.time_ns or one.cost_ns))


def entry_of(line: Line, loop: frozenset[tuple[str, str]]) -> Where:
    """What the training loop called to get to the line; the line itself if it is in the loop."""
    stack = line.stack or (line.where,)
    inside = [index for index, where in enumerate(stack) if (where.file, where.function) in loop]
    return stack[min(len(stack) - 1, inside[-1] + 1)] if inside else stack[-1]
