"""drill: signals, restarts -> what survived them, and what a scheduler has to give this training."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.core.drill import DRILL_SCHEMA, Drill, DrillMoment
from hotloop.report.document import Document, Paragraph, Section, Surface, Table, View, write
from hotloop.report.text import UNKNOWN, clean, format_counted, format_duration, format_percent

TONES = {"pass": "good", "cannot tell": "medium", "fail": "high"}
REPEATS = {
    "exact": "steps repeat bit for bit: every loss after a restart was compared",
    "near": "steps nearly repeat: losses after a restart were compared within their band",
    "not": "losses do not repeat from run to run: judged by the number of steps and the level of the loss",
    "unknown": "too few steps were repeated to know how losses repeat",
}
HEADER = ("signal", "moment", "at step", "ended after", "code", "saved", "resumed at", "lost", "verdict")


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
            Section(title="what it needs", blocks=_paragraphs(_list_needs(drill))),
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
        return ["no save was seen to its end: the grace period and the interval are unknown"]
    texts = [
        f"a save takes {format_duration(times.p50 * 1e9)} (p99 {format_duration(times.p99 * 1e9)}, {times.n} seen), so "
        f"give a grace period of {drill.grace_s} s: hotloop launch {clean(drill.launch)}",
        f"with one interruption in {format_duration(drill.mtbf_s * 1e9)} (assumed), saving every "
        f"{format_duration(drill.interval_s * 1e9)} loses least (Daly); the interval grows with the root of that time",
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
            f"the undisturbed run had {format_counted(drill.steps_count, 'step')}{'' if drill.is_whole else ', cut'}",
            f"SIGTERM went to the first process, SIGUSR1 and SIGKILL to all; grace {drill.rehearsed_grace_s:g} s",
            f"took {format_duration(drill.took_s * 1e9)}",
        )
    )


DRILL = View(id="drill", type=Drill, schema=DRILL_SCHEMA, describe=describe_drill)
