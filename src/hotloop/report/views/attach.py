"""attach: a training that runs -> the verdict, where each rank stands, and what to do next."""

from __future__ import annotations

import os

from hotloop.core.snapshot import ATTACH_SCHEMA, AttachReport, SlowPlace, Stand, say_wait
from hotloop.report.document import Document, Paragraph, Section, Span, Surface, Table, View, write
from hotloop.report.text import clean, format_duration, format_percent

TONES = {"hung": "high", "slow": "medium", "cannot tell": "medium"}
MOST_ROWS = 32
MOST_STACK = 8


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
    basis = f"{report.samples_count} looks in {report.watched_s:.1f} s at {report.pid}: {clean(report.command)[:200]}"
    notes = (*(clean(line) for line in report.limits), basis)
    sections.append(Section(title="", blocks=tuple(Paragraph(text=write((note, "dim"))) for note in notes)))
    return Document(
        title=f"{report.verdict}{since}: {clean(report.reason)}",
        tone=TONES.get(report.verdict, "good"),
        sections=tuple(section for section in sections if section.blocks),
    )


def _describe_culprit(stand: Stand, surface: Surface) -> Paragraph:
    place = _place(stand.file, stand.line, stand.function, surface)
    text = f"{_name(stand)} {clean(say_wait(stand.wait, stand.wait_detail))}" + (f" at {place}" if place else "")
    return Paragraph(text=write((text, "strong"), f": {clean(stand.snippet)}" if stand.snippet else ""))


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
    rank = "the training" if stand.rank is None else f"rank {stand.rank}"
    return rank if stand.role == "rank" else f"{stand.role} of {rank}"


def _place(file: str | None, line: int | None, function: str | None, surface: Surface) -> str | None:
    if file is None:
        return None
    shown = os.path.relpath(file, surface.folder) if surface.folder and file.startswith(surface.folder) else file
    return clean(f"{shown}:{line} in {function}")


def _say_place(place: SlowPlace, surface: Surface) -> str:
    where = _place(place.file, place.line, place.function, surface)
    return f"{format_percent(place.share_ratio)} {place.phase}, {clean(place.wait)}" + (f": {where}" if where else "")


ATTACH = View(id="attach", type=AttachReport, schema=ATTACH_SCHEMA, describe=describe_attach)
