"""LiveRun -> the rows of the block that ``hotloop run --live`` keeps on a terminal, or one line for a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hotloop.core.live import STALE, LiveRank, LiveRun
from hotloop.core.phases import PHASES
from hotloop.core.plain import to_ascii

SILENT_S = 3.0
"""The time since the last step is told from here on, and from three steps on."""
SMALLEST_RATIO = 0.005
"""Phases with a smaller share are left out."""
_GAP = "  "
_BAR_CELLS = 0.12
"""Width of a bar of the whole step, of the terminal's."""
_COLORS = dict(zip(PHASES, ("33", "36", "32", "34", "35", "31", "37", "96", "90"), strict=True))


@dataclass(frozen=True, slots=True)
class Style:
    """What a terminal shows."""

    has_color: bool
    has_unicode: bool
    encoding: str = "utf-8"

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.has_color and text else text


def draw_block(run: LiveRun, cores_ratio: float | None, style: Style, width: int) -> Sequence[str]:
    """Four rows of at most ``width`` columns: what the figures are of, or how old they are; progress; phases; the other
    figures. What does not fit is left out, from the end."""
    from rich.cells import cell_len

    age = _describe_age(run)
    basis = "" if run.lead is None else f"means of the last {run.lead.window_count:,} steps"
    head = _join([f"{'──' if style.has_unicode else '--'} hotloop", age or basis], width, style)
    room = width - cell_len(head) - 1
    rule = " " + style.paint(("─" if style.has_unicode else "-") * room, "2") if room > 0 else ""
    top = style.paint(head, "33" if age else "2") + rule
    if run.lead is None:
        return (top, "waiting for the first step"[:width], "", "")
    rest = [*_describe_use(run, cores_ratio), *_describe_ranks(run)]
    return (
        top,
        _join(_describe_progress(run), width, style),
        _draw_phases(run.lead, style, width),
        _join(rest, width, style),
    )


def draw_line(run: LiveRun, cores_ratio: float | None) -> str:
    """The same in one line."""
    lead = run.lead
    shares = [] if lead is None else [f"{name} {lead.share_ratio(name):.0%}" for name in _largest(lead)[:3]]
    parts = [_describe_age(run), *_describe_progress(run), ", ".join(shares)]
    parts += [*_describe_use(run, cores_ratio), *_describe_ranks(run)]
    return to_ascii("; ".join(part for part in parts if part))


def _describe_age(run: LiveRun) -> str:
    lead = run.lead
    if run.age_s is None or lead is None:
        return ""
    if run.state == STALE:
        return f"stale for {run.age_s:,.0f} s"
    return f"last step {run.age_s:,.0f} s ago" if run.age_s > max(SILENT_S, 3e-9 * (lead.step_mean_ns or 0)) else ""


def _describe_progress(run: LiveRun) -> list[str]:
    from hotloop.report.text import format_count, format_duration, format_percent
    from hotloop.serve.live import describe_rate

    lead = run.lead
    if lead is None:
        return []
    steps = f"{format_count(lead.steps_count)} steps"
    if run.steps_total is not None:
        steps = f"{format_count(lead.steps_count)} of {format_count(run.steps_total)} steps"
        steps += f" ({format_percent(run.progress_ratio)})"
    left = "" if run.eta_s is None else f"{format_duration(run.eta_s * 1e9)} left at this pace"
    rate, remark = describe_rate(run)
    return [steps, left, rate + (f" ({remark})" if remark else ""), f"{format_duration(lead.step_mean_ns)} a step"]


def _describe_use(run: LiveRun, cores_ratio: float | None) -> list[str]:
    from hotloop.report.text import format_bytes, format_number, format_percent, shorten

    lead = run.lead
    if lead is None:
        return []
    use = f"CPU {format_percent(cores_ratio)}" if cores_ratio is not None else ""
    if lead.utilization_ratio is not None:
        use = f"GPU {format_percent(lead.utilization_ratio)}"
    of = (
        f" of {format_bytes(lead.device_total_bytes)}"
        if lead.device_allocated_bytes and lead.device_total_bytes
        else ""
    )
    memory = "" if lead.memory_bytes is None else f"memory {format_bytes(lead.memory_bytes)}{of}"
    logged = [f"{shorten(name, 20)} {format_number(value)}" for name, value in list(lead.metrics.items())[:3]]
    return [use, *logged, memory]


def _describe_ranks(run: LiveRun) -> list[str]:
    from hotloop.report.text import format_duration

    timed = [(rank.step_mean_ns, rank.rank) for rank in run.ranks if rank.step_mean_ns is not None]
    if len(timed) < 2:
        return []
    step_ns, slowest = max(timed, key=lambda item: item[0])
    return [f"slowest rank {slowest}: {format_duration(step_ns)} a step"] if slowest is not None else []


def _largest(lead: LiveRank) -> list[str]:
    """The phases that are worth a word, largest first."""
    known = {name: lead.share_ratio(name) or 0.0 for name in PHASES}
    return sorted((name for name in PHASES if known[name] >= SMALLEST_RATIO), key=lambda name: -known[name])


def _draw_phases(lead: LiveRank, style: Style, width: int) -> str:
    """The largest phases that fit, in the order of the report, each with a bar."""
    cells = max(6, round(_BAR_CELLS * width))
    drawn: dict[str, tuple[str, str]] = {}
    room = width
    for name in _largest(lead):
        ratio = lead.share_ratio(name) or 0.0
        bar = ("█" if style.has_unicode else "#") * max(1, round(ratio * cells))
        text = f"{name} {ratio:.0%}"
        needed = len(text) + 1 + len(bar) + len(_GAP)
        if needed - len(_GAP) > room:
            break
        drawn[name], room = (text, bar), room - needed
    return _GAP.join(
        f"{text} {style.paint(bar, _COLORS[name])}" for name in PHASES if name in drawn for text, bar in [drawn[name]]
    )


def _join(parts: Iterable[str], width: int, style: Style) -> str:
    """As many of the parts as fit, at least the beginning of the first."""
    from rich.cells import cell_len, set_cell_size

    line = ""
    for part in filter(None, parts):
        text = part if style.has_unicode else to_ascii(part)
        longer = f"{line}{_GAP}{text}" if line else text
        if cell_len(longer) > width:
            return line or set_cell_size(text, width)
        line = longer
    return line
