"""terminal: the Report as lines for a terminal or a log: the verdict first, the next command last."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hotloop.core.findings import Finding, Kind, Severity
from hotloop.core.phases import PHASES
from hotloop.core.plain import to_ascii
from hotloop.core.report import (
    Device,
    DevicePhase,
    LineShare,
    MemorySummary,
    Overhead,
    RankSummary,
    Report,
    StepSummary,
)
from hotloop.core.tuning import Tuning, Verdict
from hotloop.report import text as t
from hotloop.report.goals import (
    describe_measured,
    describe_ratio,
    describe_side,
    goal_ratio,
    longest_ratio,
    work_unit,
)
from hotloop.report.renderer import Surface, renderer
from hotloop.report.tables import trace_tables
from hotloop.report.tuning import describe_notes

if TYPE_CHECKING:
    from rich.text import Text

LARGE_PHASE_RATIO = 0.10
"""Phases from this share on show the lines of user code that they belong to."""
LINES_PER_PHASE = 3
EVIDENCE_LINES = 2
SHOWN_RANKS = 16
"""More ranks than this are cut to those that findings name and the first ones; JSON and HTML hold them all."""
MINIMUM_WIDTH = 40
NAME_WIDTH = 30
"""Columns that a table's names keep where the table is too wide."""
INDENT = "   "
LABEL_WIDTH = 11

SEVERITY_STYLE = {
    Severity.HIGH: "bold red",
    Severity.MEDIUM: "bold yellow",
    Severity.LOW: "cyan",
    Severity.INFO: "dim",
}
VERDICT_STYLE = {
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "yellow",
    Verdict.SMALLER: "bold green",
    Verdict.LARGER: "yellow",
    Verdict.CHEAPER: "bold green",
    Verdict.DEARER: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
    Verdict.CANNOT_TELL: "",
    Verdict.REJECTED: "yellow",
    Verdict.FAILED: "bold red",
}
GOAL_WORDS = {"memory": "peak memory", "cost": "cost", "pareto": "speed, and peak memory,"}
LEVEL_STYLE = {"error": "bold red", "warning": "yellow", "bad": "red", "fair": "yellow", "good": "green"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The few signs that are not letters."""

    bar: str
    """Eighths of a cell, the full cell last."""
    rule: str
    dot: str
    ellipsis: str


UNICODE_GLYPHS = Glyphs(bar="▏▎▍▌▋▊▉█", rule="─", dot="·", ellipsis="…")
ASCII_GLYPHS = Glyphs(bar="#", rule="-", dot="|", ellipsis="...")


@dataclass(frozen=True, slots=True)
class Page:
    """Lines in the making, with the width and signs of the surface."""

    width: int
    glyphs: Glyphs
    manuals: dict[str, str]
    wrap: Callable[[Text, int], Iterable[Text]]
    top: int
    folder: str
    lines: list[Text] = field(default_factory=list)

    def add(self, *parts: str | tuple[str, str]) -> None:
        """One line that is never broken."""
        from rich.text import Text

        self.lines.append(Text.assemble(*parts))

    def paragraph(self, *parts: str | tuple[str, str], head: str = "") -> None:
        """Parts broken to the width behind ``head``, under which further lines are indented."""
        from rich.text import Text

        for i, line in enumerate(self.wrap(Text.assemble(*parts), max(20, self.width - len(head)))):
            self.lines.append(Text.assemble((head if i == 0 else " " * len(head), "dim"), line))

    def labelled(self, label: str, *parts: str | tuple[str, str]) -> None:
        """Parts broken to the width behind a label of a finding."""
        self.paragraph(*parts, head=INDENT + label.ljust(LABEL_WIDTH))

    def heading(self, title: str, note: str = "") -> None:
        """A section's title after an empty line."""
        self.add("")
        self.paragraph((title, "bold"), (f"  {note}" if note else "", "dim"))


@renderer("terminal", "lines for a terminal or a log", suffix=".txt")
def render_terminal(report: Report, surface: Surface) -> str:
    """The report as text ending in a newline; colours only where the surface has them."""
    from io import StringIO

    from rich.console import Console

    width = max(MINIMUM_WIDTH, surface.width)
    stream = StringIO()
    console = Console(
        file=stream,
        width=width,
        height=100,  # with both sizes given, rich asks neither the terminal nor the environment
        color_system="standard" if surface.color else None,
        no_color=not surface.color,
        force_terminal=surface.color,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    glyphs = UNICODE_GLYPHS if surface.unicode else ASCII_GLYPHS
    page = Page(
        width=width,
        glyphs=glyphs,
        manuals=dict(surface.manuals),
        wrap=lambda body, columns: body.wrap(console, columns),
        top=surface.top,
        folder=surface.folder,
    )
    _write(page, report)
    for line in page.lines:
        line.rstrip()
        console.print(line, soft_wrap=True, end="\n")
    out = stream.getvalue()
    return out if surface.unicode else to_ascii(out)


def _write(page: Page, report: Report) -> None:
    if report.outcome is not None and not report.outcome.training_seen:
        page.add((_no_training_line(report), "bold"))
        return
    if report.tune is not None:
        _write_tuning(page, report, report.tune)
        return
    _write_verdict(page, report)
    if report.trace is not None:
        _write_health(page, report)  # what a file lacks or lost stands before the findings that were read from it
    _write_strategy(page, report)
    _write_findings(page, report)
    _write_breakdown(page, report)
    _write_device(page, report.device, len(report.ranks))
    _write_device_phases(page, report.device_phases)
    _write_ranks(page, report)
    _write_memory(page, report.memory, t.describe_shared_memory(report))
    _write_scorecard(page, report)
    for table in trace_tables(report, page.top):
        page.heading(table.title.upper(), table.note)
        cells = [[t.clean(cell) for cell in row] for row in (table.header, *table.rows)]
        _write_table(page, cells, left_columns={0})
    _write_skipped(page, report)
    if report.trace is None:
        _write_health(page, report)
    _write_overhead(page, report.overhead)
    _write_runs(page, report)
    if report.next_command is not None:
        page.add("")
        page.add(("Next: ", "dim"), (t.clean(report.next_command), "bold"))


def _no_training_line(report: Report) -> str:
    verdict = t.clean(report.verdict) or "no training was seen in this command"
    reasons = [t.clean(h.message) for h in report.health if h.level in ("warning", "error")]
    exit_code = report.outcome.exit_code if report.outcome is not None else None
    ended = f" (exit code {exit_code})" if exit_code else ""
    return f"hotloop: {verdict}{': ' if reasons else ''}{'; '.join(reasons)}{ended}"


def _write_verdict(page: Page, report: Report) -> None:
    worst = next((f for f in report.findings if f.kind is Kind.FAULT and f.severity is not Severity.INFO), None)
    style = SEVERITY_STYLE[worst.severity] if worst is not None else "bold green"
    stake = t.describe_stake(report.findings)
    page.paragraph((t.clean(report.verdict), style))
    if stake:
        page.paragraph((stake, "bold"))
    parts = [f"hotloop {t.clean(report.tool_version)}"]
    if report.command:
        parts.append(t.shorten(shlex.join(report.command), max(30, page.width - 30), page.glyphs.ellipsis))
    ended_well = report.outcome is None or (
        report.outcome.ended in ("completed", "running") and not report.outcome.exit_code
    )
    between = f" {page.glyphs.dot} "
    if report.outcome is None:
        page.paragraph((between.join(parts), "dim"))
        return
    outcome = (t.format_outcome(report.outcome), "dim" if ended_well else "bold red")
    page.paragraph((between.join(parts) + between, "dim"), outcome)


def _write_findings(page: Page, report: Report) -> None:
    if not report.findings:
        return
    page.heading("FINDINGS")
    for number, finding in enumerate(report.findings, 1):
        page.add("")
        page.paragraph(
            (f"{t.describe_kind(finding)}  ", SEVERITY_STYLE[finding.severity]),
            (t.clean(finding.title), "bold"),
            (f" [{t.clean(finding.rule)}]", "dim"),
            head=f"{number}. ".ljust(len(INDENT)),
        )
        _write_finding(page, finding, t.format_history(report.forecast_history))
    combined = report.combined_saving
    if combined is not None and len(combined.techniques) > 1:
        page.add("")
        page.paragraph(
            "Together: ",
            (t.format_range(combined.low_ratio, combined.high_ratio), "bold"),
            f", most likely {t.format_percent(combined.mid_ratio)} ({', '.join(map(t.clean, combined.techniques))})."
            " Savings overlap and cannot be summed.",
        )


def _write_finding(page: Page, finding: Finding, history: str | None) -> None:
    opportunity = finding.kind is Kind.OPPORTUNITY
    if finding.cost_ns is not None or finding.cost_ratio is not None:
        amounts = []
        if finding.cost_ns is not None:
            amounts.append(f"{t.format_duration(finding.cost_ns)} {t.cost_base(finding)[0]}")
        if finding.cost_ratio is not None:
            amounts.append(f"{t.format_percent(finding.cost_ratio)} {t.cost_base(finding)[1]}")
        page.labelled("at stake" if opportunity else "you lose", ", ".join(amounts))
    if finding.saving is not None:
        forecast = f"{t.describe_forecast(finding)}" + (f"; {history}" if history else "")
        page.labelled("could save" if opportunity else "fix saves", forecast)
    elif finding.cost_ns is not None:
        page.labelled("fix saves", t.describe_no_forecast(finding))
    for i, where in enumerate(finding.where[:3]):
        head = INDENT + ("where" if i == 0 else "").ljust(LABEL_WIDTH)
        _write_place(page, (head, "dim"), where.file, where.line, where.function)
    if finding.ranks:
        page.labelled("ranks", ", ".join(map(str, finding.ranks[:24])))
    _write_evidence(page, finding)
    if finding.fix is not None:
        page.labelled("fix", t.format_fix(finding.fix))
    advice = t.describe_act(finding, page.manuals)
    if advice is not None:
        page.labelled("to do" if finding.fix is not None else "fix", advice)
    if finding.next is not None:
        page.add((INDENT + "next".ljust(LABEL_WIDTH), "dim"), t.clean(finding.next))


def _write_place(page: Page, head: tuple[str, str], file: str, line: int, function: str) -> None:
    """A line of the user's code; a file too deep for the width is shortened in its middle, before its name."""
    room = page.width - len(head[0])
    inside = f" in {t.shorten(function, room // 2 - 4, page.glyphs.ellipsis)}" if function else ""
    name = t.below_folder(t.clean(file), page.folder)
    place = t.shorten_middle(f"{name}:{line}", room - len(inside), page.glyphs.ellipsis)
    page.add(head, (place, "bold"), (inside, "dim"))


def _write_evidence(page: Page, finding: Finding) -> None:
    pairs = [p for p in (t.format_evidence(name, value) for name, value in finding.evidence.items()) if p is not None]
    if not pairs:
        return
    room = (page.width - len(INDENT) - LABEL_WIDTH) * EVIDENCE_LINES - 20  # less what "+N more" and uneven breaks take
    between = f" {page.glyphs.dot} "
    shown: list[str] = []
    for label, value in pairs:
        item = f"{label} {value}"
        if shown and len(between.join([*shown, item])) > room:
            break
        shown.append(item)
    more = f"{between}+{len(pairs) - len(shown)} more" if len(shown) < len(pairs) else ""
    page.labelled("evidence", t.shorten(between.join(shown), room + 12, page.glyphs.ellipsis) + more)


def _write_breakdown(page: Page, report: Report) -> None:
    if report.step is not None:
        page.heading("STEP", _describe_steps(report.step, page.glyphs.dot))
        left_out = t.describe_excluded(report.step.excluded)
        if left_out is not None:
            page.paragraph((left_out, "dim"), head=INDENT)
    if report.breakdown is None:
        return
    page.heading(
        "WHERE THE TIME GOES", "share and mean per step" + (", mean over ranks" if len(report.ranks) > 1 else "")
    )
    breakdown, exchange = report.breakdown, t.describe_hidden_exchange(report)
    for name in PHASES:
        _write_bar(page, name, breakdown.share(name), t.format_duration(breakdown.mean_ns(name)))
        if breakdown.share(name) >= LARGE_PHASE_RATIO:
            _write_lines(page, [line for line in report.lines if line.phase == name])
        if name == "communication" and exchange is not None:
            page.paragraph((exchange, "dim"), head="     ")


def _describe_steps(step: StepSummary, dot: str) -> str:
    parts = [
        f"{t.format_duration(step.mean_ns)} mean, {t.format_duration(step.median_ns)} median, "
        f"{t.format_duration(step.p95_ns)} p95",
        f"{t.format_counted(step.count, 'step')}, {t.format_count(step.steady_count)} of them steady",
    ]
    rates = ((step.samples_per_s, "samples"), (step.tokens_per_s, "tokens"), (step.batches_per_s, "batches"))
    parts.extend([t.format_rate(value, noun) for value, noun in rates if value is not None][:2])
    if step.time_to_first_step_ns is not None:
        parts.append(f"first step done after {t.format_duration(step.time_to_first_step_ns)}")
    return f" {dot} ".join(parts)


def _write_bar(page: Page, name: str, ratio: float, amount: str) -> None:
    head = f"{INDENT}{name.ljust(14)}{t.format_share(ratio).rjust(6)}{amount.rjust(10)}  "
    cells = _draw_bar(ratio, page.width - len(head), page.glyphs.bar)
    page.add((head, "" if ratio else "dim"), (cells, "yellow" if name == "input_wait" else "blue"))


def _draw_bar(ratio: float, width: int, eighths: str) -> str:
    """A bar of ``width`` cells at ratio 1, in eighths of a cell where there are signs for them; never empty above 0."""
    levels = len(eighths)
    filled = round(min(1.0, max(0.0, ratio)) * width * levels)
    if ratio > 0:
        filled = max(1, filled)
    full, rest = divmod(filled, levels)
    return eighths[-1] * full + (eighths[rest - 1] if rest else "")


def _write_lines(page: Page, lines: Sequence[LineShare]) -> None:
    for line in lines[:LINES_PER_PHASE]:
        head = f"     {t.format_percent(line.share_ratio).rjust(5)} "
        _write_place(page, (head, "dim"), line.file, line.line, line.function)


def _write_device(page: Page, device: Device | None, ranks_count: int) -> None:
    if device is None:
        return
    page.heading(
        "DEVICE", "from a kernel timeline" + ("; sums over ranks, shares of that sum" if ranks_count > 1 else "")
    )
    for name in ("compute", "exposed_comm", "exposed_mem", "idle"):
        part = getattr(device, name)
        _write_bar(page, name, part.share_ratio, t.format_duration(part.total_ns))
    if device.busy_ratio is not None:
        page.paragraph(f"busy {t.format_percent(device.busy_ratio)}", head=INDENT)


def _write_device_phases(page: Page, phases: Sequence[DevicePhase]) -> None:
    if not phases:
        return
    page.heading("DEVICE TIME BY PHASE", t.DEVICE_PHASES_NOTE)
    table = [["phase", "device", "host", "steps timed"]]
    for part in phases:
        device, host = t.format_duration(part.device_mean_ns), t.format_duration(part.host_mean_ns)
        table.append([part.phase, device, host, t.format_count(part.steps_count)])
    _write_table(page, table, left_columns={0})


def _write_ranks(page: Page, report: Report) -> None:
    if len(report.ranks) < 2:
        return
    page.heading("RANKS", "share of each rank's own steps")
    named: dict[int, list[str]] = {}
    for finding in report.findings:
        for number in finding.ranks:
            named.setdefault(number, []).append(t.clean(finding.rule))
    shown = _ranks_to_show(report.ranks, named)
    rules_width = max((len(", ".join(rules)) for rules in named.values()), default=0)
    phases = _phases_to_show(shown, page.width - 36 - max(rules_width, len("named in")))
    table = [["rank", "host", "steps", "step", *phases, "named in"]]
    for rank in shown:
        label = str(rank.rank) if rank.rank is not None else f"pid {rank.pid}"
        shares = [t.format_share(rank.breakdown.share(p)) if rank.breakdown else t.UNKNOWN for p in phases]
        steps = t.format_count(rank.steps)
        rules = ", ".join(named.get(rank.rank, ())) if rank.rank is not None else ""
        host = t.shorten(rank.host, 14, page.glyphs.ellipsis)
        table.append([label, host, steps, t.format_duration(rank.mean_ns), *shares, rules])
    _write_table(page, table, left_columns={1, len(phases) + 4})
    if len(shown) < len(report.ranks):
        more = t.format_counted(len(report.ranks) - len(shown), "rank")
        page.add((f"{INDENT}the JSON and HTML reports hold {more} more", "dim"))
    for rank in shown:
        if rank.lost_rows or (rank.ended not in (None, "completed")):
            lost = f"; its recording lost {t.format_counted(rank.lost_rows, 'row')}" if rank.lost_rows else ""
            label = f"rank {rank.rank}" if rank.rank is not None else f"pid {rank.pid}"
            page.paragraph(
                f"{label}: {t.OUTCOME_TEXT.get(rank.ended or '', t.clean(rank.ended or t.UNKNOWN))}{lost}", head=INDENT
            )


def _ranks_to_show(ranks: Sequence[RankSummary], named: dict[int, list[str]]) -> list[RankSummary]:
    first = [r for r in ranks if r.rank in named][:SHOWN_RANKS]
    chosen = {id(r) for r in first}
    for rank in ranks:
        if len(chosen) >= SHOWN_RANKS:
            break
        chosen.add(id(rank))
    return [r for r in ranks if id(r) in chosen]


def _phases_to_show(ranks: Sequence[RankSummary], columns: int) -> list[str]:
    """The phases with the largest share on any rank that fit in ``columns``, at least one, in the order of a step."""
    peak = {p: max((r.breakdown.share(p) for r in ranks if r.breakdown is not None), default=0.0) for p in PHASES}
    chosen: list[str] = []
    for phase in sorted((p for p in PHASES if peak[p] > 0), key=lambda p: -peak[p]):
        columns -= max(len(phase), len("100.0%")) + 2
        if chosen and columns < 0:
            break
        chosen.append(phase)
    return [p for p in PHASES if p in chosen]


def _fit_name(name: str, width: int, page: Page) -> str:
    """An operator with its shapes is told apart by its beginning; files and kernels by their ends as well."""
    cut = t.shorten if " [" in name else t.shorten_middle
    return cut(name, width, page.glyphs.ellipsis)


def _write_table(page: Page, rows: list[list[str]], left_columns: set[int]) -> None:
    from rich.cells import cell_len

    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    room = page.width - len(INDENT)
    if 0 in left_columns and _table_width(widths) > room:
        widths[0] = max(min(widths[0], NAME_WIDTH), widths[0] - _table_width(widths) + room)
        rows = [[_fit_name(row[0], widths[0], page), *row[1:]] for row in rows]
    shown = len(widths)
    while shown > 2 and _table_width(widths[:shown]) > room:
        shown -= 1
    hidden, rows = rows[0][shown:], [row[:shown] for row in rows]
    for number, row in enumerate(rows):
        cells = []
        for i, cell in enumerate(row):
            padding = " " * (widths[i] - cell_len(cell))
            cells.append(cell + padding if i in left_columns else padding + cell)
        page.add((INDENT + "  ".join(cells).rstrip(), "dim" if number == 0 else ""))
    if hidden:
        page.paragraph((f"in a wider terminal and on the HTML page: {', '.join(hidden)}", "dim"), head=INDENT)


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _write_memory(page: Page, memory: MemorySummary | None, note: str | None) -> None:
    if memory is None:
        return
    known = (
        ("peak", memory.peak_bytes),
        ("allocated", memory.allocated_bytes),
        ("reserved", memory.reserved_bytes),
    )
    parts = [f"{name} {t.format_bytes(value)}" for name, value in known if value is not None]
    if parts and memory.total_bytes is not None:
        share = f" ({t.format_percent(memory.peak_ratio)})" if memory.peak_ratio is not None else ""
        parts[0] += f" of {t.format_bytes(memory.total_bytes)}{share}"
    if memory.growth_bytes_per_step is not None:
        parts.append(f"growth {t.format_bytes(memory.growth_bytes_per_step)} per step")
    page.heading("MEMORY", (", ".join(parts) or t.UNKNOWN) + (f"; {note}" if note else ""))


def _write_scorecard(page: Page, report: Report) -> None:
    if not report.scorecard:
        return
    page.heading("SCORECARD", "usual bands of tuning guides, as context")
    bands = max(len(t.format_bands(row)) for row in report.scorecard)
    room = max(LABEL_WIDTH, page.width - len(INDENT) - bands - 20)
    width = min(room, max(len(t.clean(row.name)) for row in report.scorecard))
    for row in report.scorecard:
        name, *more = textwrap.wrap(t.clean(row.name), width, break_on_hyphens=False) or [""]
        page.add(
            f"{INDENT}{name.ljust(width)}  ",
            t.format_percent(row.measured_ratio).rjust(7),
            (f"  {t.format_band_verdict(row).ljust(7)}", LEVEL_STYLE.get(row.verdict, "dim")),
            (f"  {t.format_bands(row)}", "dim"),
        )
        for part in more:
            page.add(f"{INDENT}  {part}")


def _write_strategy(page: Page, report: Report) -> None:
    if not report.strategy:
        return
    page.heading("STRATEGY", "what it changed in this run")
    for one in report.strategy:
        head = f"{t.clean(one.technique)}: " + ("" if one.status == "applied" else f"{t.clean(one.status)}: ")
        place = (
            "" if one.where is None else f" ({t.below_folder(t.clean(one.where.file), page.folder)}:{one.where.line})"
        )
        target = "" if one.target is None else f" · {t.clean(one.target)}{place}"
        numerics = "" if one.numerics is None else f" · {t.clean(one.numerics)}"
        style = "bold" if one.status == "applied" else "yellow"
        page.paragraph((head, style), f"{t.clean(one.detail)}{target}{numerics}", head=INDENT)


def _write_tuning(page: Page, report: Report, tuning: Tuning) -> None:
    """The outcome first, then a bar and a reason for every trial; the baseline's own report is in the files."""
    page.paragraph((t.clean(tuning.verdict), "bold green"))
    page.paragraph((f"the baseline: {t.clean(report.verdict)}", "dim"))
    against = "baseline" if tuning.reference is None else t.clean(tuning.reference.id)
    page.heading("TRIALS", f"{GOAL_WORDS.get(tuning.goal, 'speed').capitalize()} relative to {against}")
    unit = work_unit(tuning)
    if tuning.reference is not None and tuning.reference.measured:
        page.paragraph(f"{against}: {describe_measured(tuning.reference, unit)}", head=INDENT)
    if not tuning.trials:
        page.add(INDENT, "no finding of the baseline names a technique that could be tried")
    longest = longest_ratio(tuning)
    width = max((len(t.clean(trial.id)) for trial in tuning.trials), default=0)
    for trial in tuning.trials:
        head = f"{INDENT}{t.clean(trial.id).ljust(width)}  {trial.verdict.value.ljust(11)}  "
        ratio = goal_ratio(tuning.goal, trial)[0]
        bar = _draw_bar((ratio or 0.0) / longest, 24, page.glyphs.bar)
        told = f"  {describe_ratio(tuning.goal, trial)}"
        page.add((head, VERDICT_STYLE[trial.verdict]), (bar.ljust(24), "blue"), told)
        for line in (describe_measured(trial, unit), describe_side(tuning.goal, trial)):
            if line:
                page.paragraph(line, head=INDENT * 2)
        page.paragraph((t.clean(trial.reason), "dim"), head=INDENT * 2)
        loss = trial.quality.get("reason")
        if loss and trial.quality.get("status") != "rejected":
            page.paragraph((f"loss {trial.quality['status']}: {t.clean(str(loss))}", "dim"), head=INDENT * 2)
        forecast = trial.forecast.get("speedup_ratio")
        if isinstance(forecast, float):
            page.paragraph((f"forecast {forecast:.2f}x ({trial.forecast['basis']})", "dim"), head=INDENT * 2)
    notes = describe_notes(tuning)
    if notes:
        page.heading("HOW FAR TO TRUST THIS")
        for note in notes:
            page.paragraph(t.clean(note), head=INDENT)
    if report.next_command is not None:
        page.add("")
        page.add(("Next: ", "dim"), (t.clean(report.next_command), "bold"))


def _write_skipped(page: Page, report: Report) -> None:
    if not report.skipped:
        return
    page.heading("NOT JUDGED")
    for reason, rules in t.describe_skipped(report.skipped):
        page.paragraph((f"{reason}: ", "dim"), rules, head=INDENT)


def _write_health(page: Page, report: Report) -> None:
    if not report.health:
        return
    page.heading("HEALTH OF THIS REPORT")
    for health in report.health:
        page.paragraph(
            (t.clean(health.level), LEVEL_STYLE.get(health.level, "dim")), f": {t.clean(health.message)}", head=INDENT
        )


def _write_overhead(page: Page, overhead: Overhead | None) -> None:
    if overhead is None:
        return
    known = (("hooks", overhead.hooks_ns), ("sampler", overhead.sampler_ns), ("deep window", overhead.deep_window_ns))
    parts = [f"{name} {t.format_duration(value)}" for name, value in known if value is not None]
    if overhead.memory_bytes is not None:
        parts.append(f"memory {t.format_bytes(overhead.memory_bytes)}")
    share = t.format_percent(overhead.share_ratio)
    page.heading("HOTLOOP ITSELF", f"share of the run {share}{'; ' if parts else ''}{', '.join(parts)}")
    if overhead.method:
        page.paragraph((t.clean(overhead.method), "dim"), head=INDENT)


def _write_runs(page: Page, report: Report) -> None:
    if not report.runs:
        return
    page.heading("TRAININGS IN THIS RUN", "the largest one is above")
    for number, run in enumerate(report.runs, 1):
        steps = f" ({t.format_counted(run.step.count, 'step')})" if run.step is not None else ""
        page.paragraph(f"{number}. {t.clean(run.verdict)}{steps}", head=INDENT)
