"""image: what a rebuild takes as the file is and with each fix, and minutes a month."""

from __future__ import annotations

from hotloop.core.image import AS_IS, IMAGE_SCHEMA, SCENARIOS, TOGETHER, ImageReport, ScenarioTimes, Variant
from hotloop.show.report.document import Block, Cell, Document, Paragraph, Section, Surface, Table, View, write
from hotloop.show.report.text import clean, format_bytes, format_counted, format_duration, format_number

BUDGET_S = 600
"""The time that tuning guides allow a build."""
VERDICTS = {
    "proven": ("proven", "good"),
    "no-gain": ("no gain", "dim"),
    "contents-differ": ("not safe", "medium"),
    "failed": ("failed", "medium"),
    "not-built": ("not built", "dim"),
    "baseline": ("", ""),
}


def describe_image(report: ImageReport, surface: Surface) -> Document:
    title, tone = _describe_verdict(report)
    sections = [Section(title="", blocks=(_draw_table(report),)), Section(title="", blocks=_list_notes(report))]
    return Document(
        title=title,
        tone=tone,
        lead=(_paragraph(_describe_subject(report)),),
        sections=tuple(sections),
        next_label="next",
        next_command=report.next,
    )


def _paragraph(text: str) -> Paragraph:
    return Paragraph(text=write(text), indent=0, hang=2)


def _describe_verdict(report: ImageReport) -> tuple[str, str]:
    if report.builder is None:
        return "nothing was built here: the results below come from the file, without timings", "medium"
    won = [one for one in report.variants if one.verdict == "proven"]
    best = max(won, key=lambda one: (one.id == TOGETHER, sum(_save(report, one).values())), default=None)
    if best is None:
        scenario = "code" if "code" in report.edits else "cold"
        now = format_duration(report.baseline.times[scenario].median_ns)
        return f"{_NAMES[scenario]} takes {now}, and no fix is proven to make it faster", "good"
    saved_ns = _save(report, best)
    scenario = max(saved_ns, key=saved_ns.__getitem__)
    now_ns, after_ns = (one.times[scenario].median_ns or 0 for one in (report.baseline, best))
    month = "" if best.saved_ns_a_month is None else f": {_format_month(best)} minutes per month"
    return (
        f"{_NAMES[scenario]} takes {format_duration(now_ns)}, with {clean(_name(best))} {format_duration(after_ns)} "
        f"({format_number(now_ns / after_ns)}x){month}"
    ), "medium"


_NAMES = {
    "cold": "a cold build",
    "code": "a build after a code edit",
    "requirements": "a build after a requirements edit",
}


def _save(report: ImageReport, variant: Variant) -> dict[str, int]:
    """Nanoseconds by scenario."""
    before = report.baseline.times
    return {
        scenario: (before[scenario].median_ns or 0) - times.median_ns
        for scenario, times in variant.times.items()
        if times.median_ns is not None
    }


def _name(variant: Variant) -> str:
    return variant.id if len(variant.fixes) < 2 else f"the {len(variant.fixes)} proven fixes"


def _describe_subject(report: ImageReport) -> str:
    parts = [clean(report.dockerfile), f"context {format_bytes(report.context_bytes)}"]
    parts += [clean(report.builder)] if report.builder else []
    for scenario, edit in report.edits.items():
        rate = edit.a_month(report.days)
        often = "rebuilds per month unknown" if rate is None else f"{format_number(rate)} per month"
        parts.append(f"{SCENARIOS[scenario]}: {clean(edit.path)} ({often})")
    return " · ".join(parts)


def _draw_table(report: ImageReport) -> Table:
    scenarios = [one for one in SCENARIOS if one in report.baseline.times]
    header = ("what", *(SCENARIOS[one] for one in scenarios), "minutes per month", "")
    rows = []
    for variant in report.variants:
        cells: list[str | Cell] = [clean(variant.title if variant.id == AS_IS else variant.id)]
        cells += [_draw_times(variant.times.get(one), report.baseline.times[one], variant) for one in scenarios]
        word, tone = VERDICTS[variant.verdict]
        cells += [_format_month(variant), Cell(text=word, tone=tone)]
        rows.append(tuple(cells))
    return Table(header=header, rows=tuple(rows), left=frozenset({0, len(header) - 1}), shrinks=False)


def _draw_times(times: ScenarioTimes | None, before: ScenarioTimes, variant: Variant) -> str:
    if times is None:
        return "-"
    if times.median_ns is not None:
        factor = before.median_ns / times.median_ns if before.median_ns and variant.id != AS_IS else 1.0
        return format_duration(times.median_ns) + (f" ({format_number(factor)}x)" if factor >= 1.2 else "")
    if times.steps_count is None or times.cached_count is None:
        return "-"
    return f"{times.steps_count - times.cached_count} of {times.steps_count} steps"


def _format_month(variant: Variant) -> str:
    saved_ns = variant.saved_ns_a_month
    if variant.id == AS_IS or saved_ns is None:
        return "-" if variant.id == AS_IS else "unknown"
    return f"{saved_ns / 60e9:+.1f}" if saved_ns < 0 else f"{saved_ns / 60e9:.1f}"


def _list_notes(report: ImageReport) -> tuple[Block, ...]:
    lines = [report.reason] if report.reason else []
    for one in report.variants[1:]:
        lines.append(f"{one.id}: {one.title}" + (f"; {one.reason}" if one.reason else ""))
        if one.contents is not None and one.contents.left_out_count:
            files = format_counted(one.contents.left_out_count, "file")
            ask = "; written only with --fix --leave-out" if one.needs_consent else ""
            lines.append(f"  leaves {files} out of the image, such as {one.contents.left_out[0]}{ask}")
        if one.contents is not None and one.contents.are_same:
            lines.append(f"  all other files are the same ({one.contents.files_count:,} files, by their hashes)")
    cold, code = (report.baseline.times.get(one) for one in ("cold", "code"))
    if cold is not None and cold.median_ns is not None:
        kept = "kept" if cold.median_ns <= BUDGET_S * 1e9 else "exceeded"
        lines.append(
            f"the usual time budget for a build, {BUDGET_S // 60} min: {kept} ({format_duration(cold.median_ns)} cold)"
        )
    if code is not None and code.cached_count is not None:
        lines.append(
            f"cache: after a code edit, {code.cached_count} of {code.steps_count} steps of the current file are cached"
        )
    lines += [f"not tried: {one.rule}: {one.reason}" for one in report.skipped]
    lines += [*report.notes, *([f"stopped: {report.stopped}"] if report.stopped else [])]
    lines.append("base images are already there, and are not included in times; a rebuild is counted for each commit")
    return tuple(_paragraph(clean(line)) for line in lines)


IMAGE = View(id="image", type=ImageReport, schema=IMAGE_SCHEMA, describe=describe_image)
