"""doctor: the checks of a machine -> what is bad first and in full, what is good in a line per group."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.doctor import DOCTOR_SCHEMA, DoctorReport, MachineCheck
from hotloop.show.report.document import Document, Paragraph, Section, Span, Surface, View, write
from hotloop.show.report.text import clean

TONES = {"harmful": "high", "warning": "medium", "good": "good", "unknown": "dim"}


def describe_doctor(report: DoctorReport, surface: Surface) -> Document:
    counts = report.counts
    worst = next((status for status in ("harmful", "warning") if counts[status]), "good")
    names = {"warning": "warning" if counts["warning"] == 1 else "warnings"}
    parts = [f"{counts[s]} {names.get(s, s)}" for s in counts if counts[s]]
    blind = any(check.id == "torch" and check.status == "unknown" for check in report.checks)
    fine = "this machine is set up well, but torch could not be checked" if blind else "this machine is set up well"
    head = "this machine slows down or breaks training" if worst == "harmful" else fine
    if worst == "warning":
        head = f"{parts.pop(0)} to check before training"
    problems = [_describe_problem(check) for check in report.checks if check.status in ("harmful", "warning")]
    return Document(
        title=head + (f": {', '.join(parts)}" if parts else ""),
        tone="medium" if blind and worst == "good" else TONES[worst],
        sections=(
            *problems,
            Section(title="", blocks=tuple(_describe_good(report.checks))),
        ),
        next_label="next",
        next_command=report.next,
    )


def _describe_problem(check: MachineCheck) -> Section:
    subject = check.measured if check.id.startswith("variable-") else f"{check.title}: {check.measured}"
    label = Span(check.status.ljust(9), TONES[check.status])
    blocks = [Paragraph(label=label, text=write(clean(subject)), indent=0)]
    for name, text in (("why", check.why), ("fix", check.fix)):
        if text:
            blocks.append(Paragraph(label=Span(name.ljust(5)), text=write(clean(text)), indent=9))
    return Section(title="", blocks=tuple(blocks))


def _describe_good(checks: Sequence[MachineCheck]) -> list[Paragraph]:
    """One paragraph per group with what is good, and one for each reason why something could not be found out."""
    good: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "good":
            text = check.measured if check.title == check.group else f"{check.title}: {check.measured}"
            good.setdefault(clean(check.group), []).append(clean(text))
        elif check.status == "unknown":
            reason = clean(check.why + (f": {check.fix}" if check.fix else ""))
            reasons.setdefault(reason, []).append(clean(check.title))
    lines = [(group, "; ".join(texts)) for group, texts in good.items()]
    lines += [("unknown", f"{', '.join(titles)} ({reason})") for reason, titles in reasons.items()]
    return [Paragraph(label=Span(name.ljust(13)), text=write(text), indent=0) for name, text in lines]


DOCTOR = View(
    id="doctor",
    type=DoctorReport,
    schema=DOCTOR_SCHEMA,
    describe=describe_doctor,
    first=lambda report: {"python": report.python, "counts": report.counts},
)
