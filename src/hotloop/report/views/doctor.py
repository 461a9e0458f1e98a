"""doctor: the checks of a machine -> what is bad first and in full, what is good in a line per group, the checklist."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.doctor import DOCTOR_SCHEMA, ChecklistItem, DoctorReport, MachineCheck
from hotloop.report.document import Document, Paragraph, Section, Span, write
from hotloop.report.renderer import Surface
from hotloop.report.text import clean
from hotloop.report.view import View

TONES = {"harmful": "high", "warning": "medium", "good": "good", "unknown": "dim"}
TICK_TONES = {"ticked": "good", "unticked": "medium", "unknown": "dim", "not-applicable": "dim"}
BOXES = {"ticked": "[x]", "unticked": "[ ]", "unknown": "[?]", "not-applicable": "[-]"}
NO_RUN = "no run was given"
"""The evidence of an item that a run would answer (bench/checklist.py)."""


def describe_doctor(report: DoctorReport, surface: Surface) -> Document:
    counts = report.counts
    worst = next((status for status in ("harmful", "warning") if counts[status]), "good")
    names = {"warning": "warning" if counts["warning"] == 1 else "warnings"}
    parts = [f"{counts[s]} {names.get(s, s)}" for s in counts if counts[s]]
    blind = any(check.id == "torch" and check.status == "unknown" for check in report.checks)
    fine = "this machine is set up well, but torch could not be checked" if blind else "this machine is set up well"
    head = "this machine slows or breaks a training" if worst == "harmful" else fine
    if worst == "warning":
        head = f"{parts.pop(0)} to check before training"
    problems = [_describe_problem(check) for check in report.checks if check.status in ("harmful", "warning")]
    return Document(
        kind="doctor",
        subject=report,
        data=report.to_json,
        version=report.tool_version,
        title=head + (f": {', '.join(parts)}" if parts else ""),
        tone="medium" if blind and worst == "good" else TONES[worst],
        sections=(
            *problems,
            Section(title="", blocks=tuple(_describe_good(report.checks))),
            *(() if report.checklist is None else _describe_checklist(report.checklist)),
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


def _describe_checklist(items: Sequence[ChecklistItem]) -> list[Section]:
    """The checklist by stage, with its evidence."""
    ticks: list[str] = [item.tick for item in items]
    count = ", ".join(
        f"{ticks.count(tick)} {name}"
        for tick, name in (
            ("ticked", "ticked"),
            ("unticked", "open"),
            ("unknown", "unknown"),
            ("not-applicable", "not applicable"),
        )
    )
    head = [Paragraph(text=write((f"checklist: {count}", "strong")), indent=0)]
    if any(item.evidence == NO_RUN for item in items):
        text = "No run was given. To fill in the rest: hotloop doctor --checklist RUN"
        head.append(Paragraph(text=write(text), indent=0))
    sections = [Section(title="", blocks=tuple(head))]
    for stage in dict.fromkeys(item.stage for item in items):
        now = " (this machine, now)" if stage == "before" else ""
        blocks = [Paragraph(text=write((f"{clean(stage)} training{now}", "strong")), indent=0)]
        for item in (one for one in items if one.stage == stage):
            box = Span(f"{BOXES.get(item.tick, '[?]')} ", TICK_TONES.get(item.tick, "dim"))
            blocks.append(Paragraph(label=box, text=write(clean(item.title)), indent=0))
            if item.evidence != NO_RUN:
                blocks.append(Paragraph(text=write(clean(item.evidence)), indent=6))
        sections.append(Section(title="", blocks=tuple(blocks)))
    return sections


DOCTOR = View(
    id="doctor", type=DoctorReport, schema=DOCTOR_SCHEMA, describe=describe_doctor, read=DoctorReport.from_json
)
