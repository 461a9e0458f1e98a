"""attach, bisect, drill and prove: one verdict with its reason first, then what it rests on, and how far it holds."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

from hotloop.core.bisection import BISECT_SCHEMA, Bisection, BisectStep
from hotloop.core.drill import DRILL_SCHEMA, Drill, DrillMoment
from hotloop.core.environment import EnvironmentChange
from hotloop.core.proof import PROOF_SCHEMA, Proof, ProofSide
from hotloop.core.snapshot import ATTACH_SCHEMA, AttachReport, SlowPlace, Stand, say_wait
from hotloop.show.report.document import Document, Paragraph, Section, Span, Surface, Table, View, write
from hotloop.show.report.text import UNKNOWN, clean, format_counted, format_duration, format_percent

TONES = {
    **{"hung": "high", "slow": "medium", "cannot tell": "medium"},
    **{"found": "good"},
    **{"pass": "good", "fail": "high"},
    **{"faster": "best", "same": "good", "slower": "medium", "refused": "high"},
}
MOST_ROWS = 32

REPEATS = {
    "exact": "steps repeat bit for bit: every loss after a restart was compared",
    "near": "steps nearly repeat: losses after a restart were compared within their band",
    "not": "losses do not repeat from run to run: the verdict is based on the number of steps and the level of the "
    "loss",
    "unknown": "too few steps were repeated to know how well losses repeat",
}
HEADER = ("signal", "moment", "at step", "ended after", "code", "saved", "resumed at", "lost", "verdict")

GUARDS = {"passed": "the loss stays the same", "rejected": "the loss changes", "unknown": "the loss was not checked"}


def describe_attach(report: AttachReport, surface: Surface) -> Document:
    since = ""
    if report.verdict == "hung" and report.since_s is not None:
        since = f" for {format_duration(report.since_s * 1e9)}{' or more' if report.since_is_bound else ''}"
    alone = len(report.ranks) == 1 and bool(report.culprits)
    sections = [
        Section(title="who differs", blocks=tuple(_describe_culprit(stand, surface) for stand in report.culprits)),
        Section(title="where the ranks are", blocks=() if alone else (_tabulate(report.ranks, surface),)),
    ]
    if report.verdict == "slow":
        lines = tuple(Paragraph(text=write(_say_place(place, surface))) for place in report.findings)
        sections.insert(0, Section(title="where the time goes", blocks=lines))
    if report.advice:
        lines = tuple(Paragraph(label=Span("next "), text=write(clean(line)), hang=5) for line in report.advice)
        sections.append(Section(title="what to do", blocks=lines))
    basis = (
        f"{report.samples_count} observations of process {report.pid} in {report.watched_s:.1f} s: "
        f"{clean(report.command)[:200]}"
    )
    sections.append(Section(title="", blocks=_paragraphs((*report.limits, basis), "dim")))
    return Document(
        title=f"{report.verdict}{since}: {clean(report.reason)}",
        tone=TONES.get(report.verdict, "good"),
        sections=tuple(section for section in sections if section.blocks),
    )


def _describe_culprit(stand: Stand, surface: Surface) -> Paragraph:
    place = _place(stand.file, stand.line, stand.function, surface)
    text = f"{_name(stand)} {clean(say_wait(stand.wait, stand.wait_detail))}" + (f" at {place}" if place else "")
    return Paragraph(text=write((text, "strong"), f": {clean(stand.snippet)}" if stand.snippet else ""))  # words: ok


def _tabulate(stands: tuple[Stand, ...], surface: Surface) -> Table:
    rows = [
        (
            _name(stand),
            str(stand.pid or ""),
            _place(stand.file, stand.line, stand.function, surface) or "-",
            clean(stand.wait_detail if stand.wait == "collective" and stand.wait_detail else stand.wait),
            "-" if stand.idle_s is None else format_duration(stand.idle_s * 1e9),
            "-" if stand.cpu_ratio is None else format_percent(stand.cpu_ratio),
            "-" if stand.steps_count is None else f"{stand.steps_count:,}",
        )
        for stand in stands[:MOST_ROWS]
    ]
    header = ("rank", "pid", "line", "does", "idle for", "CPU", "steps")
    return Table(header=header, rows=tuple(rows), left=frozenset({0, 2, 3}), optional={1: 1.0, 5: 0.5, 6: 0.7})


def _name(stand: Stand) -> str:
    rank = "the training process" if stand.rank is None else f"rank {stand.rank}"  # words: ok
    return rank if stand.role == "rank" else f"{stand.role} of {rank}"  # words: ok


def _place(file: str | None, line: int | None, function: str | None, surface: Surface) -> str | None:
    if file is None:
        return None
    shown = os.path.relpath(file, surface.folder) if surface.folder and file.startswith(surface.folder) else file
    return clean(f"{shown}:{line} in {function}")


def _say_place(place: SlowPlace, surface: Surface) -> str:
    where = _place(place.file, place.line, place.function, surface)
    return f"{format_percent(place.share_ratio)} {place.phase}, {clean(place.wait)}" + (f": {where}" if where else "")


ATTACH = View(id="attach", type=AttachReport, schema=ATTACH_SCHEMA, describe=describe_attach)


def describe_drill(drill: Drill, surface: Surface) -> Document:
    moments = [(one.signal, moment) for one in drill.signals for moment in one.moments]
    return Document(
        title=f"{drill.verdict}: {clean(drill.reason)}",
        tone=TONES.get(drill.verdict, "medium"),
        sections=(
            Section(
                title="interruptions",
                blocks=(
                    Table(
                        header=HEADER, rows=tuple(_describe_moment(*one) for one in moments), left=frozenset({0, 1, 8})
                    ),
                ),
            ),
            Section(
                title="",
                blocks=_paragraphs(
                    f"SIG{one.signal} {one.verdict}: {reason}" for one in drill.signals for reason in one.reasons
                ),
            ),
            Section(title="what the launch needs", blocks=_paragraphs(_list_needs(drill))),
            Section(
                title="",
                blocks=_paragraphs(
                    [
                        *dict.fromkeys(f"SIG{signal}: {note}" for signal, one in moments for note in one.notes),
                        *drill.limits,
                        _say_scope(drill),
                    ],
                    "dim",
                ),
            ),
        ),
    )


def _paragraphs(texts: Iterable[str], tone: str = "") -> tuple[Paragraph, ...]:
    return tuple(Paragraph(text=write((clean(text), tone))) for text in texts)


def _describe_moment(signal: str, one: DrillMoment) -> tuple[str, ...]:
    return (
        f"SIG{signal}",
        one.moment,
        str(one.at_step),
        format_duration(one.exit_s * 1e9),
        "killed" if one.exit_code is None else str(one.exit_code),
        f"in {format_duration(one.save_s * 1e9)}" if one.saved and one.save_s is not None else "no",
        UNKNOWN if one.resumed_at_step is None else str(one.resumed_at_step),
        UNKNOWN if one.steps_lost is None else str(one.steps_lost),
        one.verdict,
    )


def _list_needs(drill: Drill) -> list[str]:
    times = drill.save_seconds
    if times.p50 is None or times.p99 is None or drill.grace_s is None or drill.interval_s is None:
        return ["no complete save was seen: the grace period and the interval are unknown"]
    texts = [
        f"a save takes {format_duration(times.p50 * 1e9)} (p99 {format_duration(times.p99 * 1e9)}, {times.n} seen), so "
        f"give a grace period of {drill.grace_s} s: hotloop launch {clean(drill.launch)}",
        f"with one interruption in {format_duration(drill.mtbf_s * 1e9)} (assumed), a save every "
        f"{format_duration(drill.interval_s * 1e9)} loses the least time (Daly); the best interval grows with the "
        "square root of the time between interruptions",
    ]
    if drill.expected_waste_ratio is not None:
        own = "" if drill.interval_steps is None else f" at its own {format_counted(drill.interval_steps, 'step')}"
        texts.append(
            f"expected waste{own}: {format_percent(drill.expected_waste_ratio)} of the time, with "
            f"{format_duration((drill.restart_s or 0.0) * 1e9)} for a restart"
        )
    return texts


def _say_scope(drill: Drill) -> str:
    return "; ".join(
        (
            REPEATS.get(drill.repeats, drill.repeats),
            "the run without interruption had "
            f"{format_counted(drill.steps_count, 'step')}{'' if drill.is_whole else ', cut'}",
            f"SIGTERM went to the first process, SIGUSR1 and SIGKILL to all; grace {drill.rehearsed_grace_s:g} s",
            f"took {format_duration(drill.took_s * 1e9)}",
        )
    )


DRILL = View(id="drill", type=Drill, schema=DRILL_SCHEMA, describe=describe_drill)


def describe_proof(proof: Proof, surface: Surface) -> Document:
    rows = tuple(_describe_side(side, proof) for side in (proof.a, proof.b))
    blocks = [
        Paragraph(text=write((_say_ratio(proof), "strong"))),
        Paragraph(text=write(clean(proof.reason))),
        Paragraph(text=write(f"{GUARDS[proof.guard_status]}: {clean(proof.guard_reason)}")),
    ]
    known = [str(proof.machine[name]) for name in ("cpu", "device_name", "torch") if proof.machine.get(name)]
    steps = "" if proof.steps_count is None else f"{proof.steps_count} steps per process, "
    notes = [
        *proof.limits,
        f"holds for: {steps}{', '.join(known) or 'this machine'}; took {format_duration(proof.took_s * 1e9)}",
    ]
    return Document(
        title=_title(proof),
        tone=TONES.get(proof.verdict, "medium"),
        sections=(
            Section(title="", blocks=tuple(blocks)),
            Section(
                title="the two variants",
                blocks=(
                    Table(
                        header=("", f"time per {proof.unit}", "spread", "processes", "command"),
                        rows=rows,
                        left=frozenset({0, 4}),
                    ),
                ),
            ),
            Section(title="", blocks=_paragraphs(notes, "dim")),
        ),
    )


def _title(proof: Proof) -> str:
    if proof.verdict == "same":
        return f"same: B and A differ by less than {format_percent(proof.at_least_ratio)}"
    if proof.verdict in ("faster", "slower") and proof.ratio is not None:
        return f"{proof.verdict}: B takes {proof.ratio:.3f} times as long as A"
    return f"{proof.verdict}: {clean(proof.reason)}"


def _say_ratio(proof: Proof) -> str:
    pairs = format_counted(proof.pairs, "pair")
    if proof.ratio is None:
        return f"{pairs} of processes: too few for a ratio"
    bounds = "" if proof.low is None else f" ({proof.low:.3f} to {proof.high:.3f})"
    return f"B's time per {proof.unit} is {proof.ratio:.3f}{bounds} of A's, {pairs} of fresh processes run in turn"


def _describe_side(side: ProofSide, proof: Proof) -> tuple[str, ...]:
    times, command = side.times_ns, clean(" ".join(side.command))[:120]
    if not times:
        return side.id, UNKNOWN, UNKNOWN, "0", command
    mean = math.fsum(times) / len(times)
    spread = max(times) / min(times) - 1
    name = f"{command} ({clean(side.change)})" if side.change else command
    return side.id, format_duration(mean), format_percent(spread), str(len(times)), name


PROVE = View(id="prove", type=Proof, schema=PROOF_SCHEMA, describe=describe_proof)


def describe_bisection(bisection: Bisection, surface: Surface) -> Document:
    names = "".join(f"{_say_change(one)}: " for one in bisection.culprit)
    facts = [
        *(f"suspect: {_say_change(one)}" for one in bisection.suspects),
        *(f"not tried: {_say_change(one.change)}: {one.reason}" for one in bisection.untried),
        f"{format_counted(bisection.changes_count, 'change')}, losses not compared; "
        f"took {format_duration(bisection.took_s * 1e9)}",
    ]
    if bisection.ratio is not None:
        facts.insert(0, f"{bisection.ratio:.3f} ({bisection.low:.3f} to {bisection.high:.3f}) times as long")
    steps = Table(
        header=("step", "changes", "times as long", "pairs", "is", "with"),
        rows=tuple(_describe_step(number, step) for number, step in enumerate(bisection.steps, 1)),
        left=frozenset({4, 5}),
    )
    return Document(
        title=clean(f"{bisection.verdict}: {names}{bisection.reason}"),
        tone=TONES.get(bisection.verdict, "medium"),
        sections=(
            Section(title="steps", blocks=(steps,) if bisection.steps else ()),
            Section(title="", blocks=_paragraphs(facts)),
        ),
    )


def _say_change(change: EnvironmentChange) -> str:
    values = "" if change.kind == "revision" else f" {change.before or '(none)'} -> {change.after or '(none)'}"
    return f"{change.kind} {change.name}{values}"


def _describe_step(number: int, step: BisectStep) -> tuple[str, ...]:
    proof, names = step.proof, ", ".join(step.changes[:3]) + (", ..." if len(step.changes) > 3 else "")
    ratio = UNKNOWN if proof is None or proof.ratio is None else f"{proof.ratio:.3f}"
    why = clean(proof.reason)[:120] if proof else "the budget ran out"
    side = {True: "slow", False: "fast", None: f"unknown: {why}"}[step.is_slow]
    return str(number), str(len(step.changes)), ratio, str(proof.pairs if proof else 0), side, clean(names)


BISECT = View(id="bisect", type=Bisection, schema=BISECT_SCHEMA, describe=describe_bisection)
