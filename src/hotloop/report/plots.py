"""Numbers with names -> inline SVG: lines with a band, bars, and points with intervals.

Classes of report.css give the colours of both themes.

Every text is escaped here. Nothing has a style attribute, which the page's policy forbids.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from hotloop.core.findings import Value

from .document import Bar, LinePlot
from .text import clean, shorten

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 34
TICKS = 4
BEYOND = 1.5
"""A line may leave the frame's own range by this much of it before it is drawn at the edge."""
BAR_HEIGHT, LABEL_WIDTH, VALUE_WIDTH = 22, 190, 130
POINTS_WIDTH, POINTS_HEIGHT = 640, 340
POINTS_LEFT, POINTS_RIGHT, POINTS_TOP, POINTS_BOTTOM = 62, 616, 18, 294
POINT_TICKS = 5


def draw_lines(series: LinePlot) -> str:
    """Lines over x with a legend. The frame follows the band and the first line; others are cut at its edge."""
    x, lines, band, mark_x, from_zero = series.x, series.lines, series.band, series.mark_x, series.from_zero
    scale = math.log if series.is_log_x else float
    frame = [*lines[0].values, *(band[0] if band else ()), *(band[1] if band else ())]
    known = [value for value in frame if value is not None and math.isfinite(value)]
    if not x or not known:
        return ""
    low, high = min(known), max(known)
    wide = (high - low) or abs(high) or 1.0
    others = [v for line in lines[1:] for v in line.values if v is not None and math.isfinite(v)]
    low = min([low, *(max(v, low - BEYOND * wide) for v in others)])
    high = max([high, *(min(v, high + BEYOND * wide) for v in others)])
    low = min(0.0, low) if from_zero else low
    pad = 0.05 * ((high - low) or abs(high) or 1.0)
    low, high = low if from_zero and low == 0 else low - pad, high + pad
    first, last = min(x), max(x)

    def at_x(value: float) -> float:
        share = (scale(value) - scale(first)) / (scale(last) - scale(first)) if last > first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def at_y(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_open(series.alt, WIDTH, HEIGHT)]
    for i in range(TICKS + 1):
        value = low + (high - low) * i / TICKS
        y = at_y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, _tick(value), "end"))
    for value in sorted(set(x)) if series.is_log_x else dict.fromkeys((first, last)):
        anchor = "end" if value == last else "start" if value == first else "middle"
        parts.append(_text(at_x(value), HEIGHT - BOTTOM + 16, _tick(value), anchor))
    if series.is_log_x:
        parts.append(_text(WIDTH - RIGHT, HEIGHT - 4, series.x_name, "end"))
    else:
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 16, series.x_name, "middle"))
    if band is not None:
        corners = [(at_x(a), at_y(v)) for a, v in zip(x, band[1], strict=True) if v is not None]
        corners += [(at_x(a), at_y(v)) for a, v in reversed(list(zip(x, band[0], strict=True))) if v is not None]
        parts.append(f'<polygon class="band" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>')
    if mark_x is not None:
        place = at_x(mark_x)
        parts.append(f'<line class="mark" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    for line in lines:
        for run in _runs(x, line.values):
            points = " ".join(f"{at_x(a):.1f},{at_y(b):.1f}" for a, b in run)
            if not line.is_dots:
                parts.append(f'<polyline class="line {_name(line.style)}" points="{points}"/>')
            if line.is_dots or len(run) == 1 or len(x) <= 12:
                parts += [
                    f'<circle class="dot {_name(line.style)}" cx="{at_x(a):.1f}" cy="{at_y(b):.1f}" r="3"/>'
                    for a, b in run
                ]
    at = float(LEFT)
    for style, name in [*((line.style, line.name) for line in lines), *([("band", series.band_name)] if band else [])]:
        parts.append(f'<rect class="key {_name(style)}" x="{at:.0f}" y="{HEIGHT - 11}" width="10" height="8"/>')
        parts.append(_text(at + 14, HEIGHT - 4, name, "start"))
        at += 30 + 6.6 * len(clean(name))
    return "".join([*parts, "</svg>"])


def _tick(value: float) -> str:
    """About four digits, large numbers with a sign for their size.

    >>> [_tick(value) for value in (0.12345, 1234.5, 103_466, 30_840_000, 2.5e9)]
    ['0.1235', '1234', '103.5k', '30.84M', '2.5G']
    """
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if sign == 'k' else size):.4g}{sign}"
    return f"{value:.4g}"


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars from zero, one below the other, their lengths in proportion."""
    known = [bar.value for bar in bars if bar.value is not None and math.isfinite(bar.value) and bar.value > 0]
    if not known:
        return ""
    longest = max(known)
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    parts = [_open(title, WIDTH, BAR_HEIGHT * len(bars) + 6)]
    for row, bar in enumerate(bars):
        y = row * BAR_HEIGHT + 3
        parts.append(_text(LABEL_WIDTH - 8, y + 14, shorten(bar.label, 26), "end"))
        is_known = bar.value is not None and math.isfinite(bar.value) and bar.value > 0
        length = room * (bar.value or 0.0) / longest if is_known else 0.0
        parts.append(
            f'<rect class="bar-mark {_name(bar.style)}" x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" '
            f'height="{BAR_HEIGHT - 5}"/>'
        )
        parts.append(_text(LABEL_WIDTH + length + 6, y + 14, bar.shown, "start"))
    return "".join([*parts, "</svg>"])


def draw_points(points: Sequence[Mapping[str, Value]]) -> str:
    """Speed-up to the right and memory saving upwards, with their intervals cut at the edges; empty with fewer than
    two points."""
    if len(points) < 2:
        return ""
    xs = [_ratio(one, "speedup_ratio", 1.0) for one in points]
    ys = [_ratio(one, "saving_ratio", 1.0) for one in points]
    across, up = _Axis(xs, POINTS_LEFT, POINTS_RIGHT), _Axis(ys, POINTS_BOTTOM, POINTS_TOP)
    parts = [
        _open(
            "Speed-up and memory saving of every candidate; the points are named in the table",
            POINTS_WIDTH,
            POINTS_HEIGHT,
        )
    ]
    for x, label in across.ticks():
        parts += [_rule("grid", x, x, POINTS_TOP, POINTS_BOTTOM), _text(x, POINTS_BOTTOM + 16, label, "middle")]
    for y, label in up.ticks():
        parts += [_rule("grid", POINTS_LEFT, POINTS_RIGHT, y, y), _text(POINTS_LEFT - 8, y + 4, label, "end")]
    parts.append(_rule("unchanged", across.place(1.0), across.place(1.0), POINTS_TOP, POINTS_BOTTOM))
    parts.append(_rule("unchanged", POINTS_LEFT, POINTS_RIGHT, up.place(1.0), up.place(1.0)))
    parts.append(_text(POINTS_RIGHT, POINTS_HEIGHT - 8, "speed-up (right is faster)", "end"))
    parts.append(_text(POINTS_LEFT, POINTS_TOP - 6, "memory saving (up is smaller)", "start"))
    for number, (one, x_ratio, y_ratio) in enumerate(zip(points, xs, ys, strict=True)):
        x, y = across.place(x_ratio), up.place(y_ratio)
        left, right = (across.place(_ratio(one, f"speedup_{end}_ratio", x_ratio)) for end in ("low", "high"))
        bottom, top = (up.place(_ratio(one, f"saving_{end}_ratio", y_ratio)) for end in ("low", "high"))
        standing = _name(str(one.get("standing")).replace(" ", "-"))
        parts.append(f'<g class="mark-{standing}"><title>{html.escape(clean(str(one.get("id"))))}</title>')
        parts += [_rule("span", left, right, y, y), _rule("span", x, x, top, bottom)]
        parts.append(f'<circle cx="{x}" cy="{y}" r="9"/>{_text(x, y + 4, str(number), "middle")}</g>')
    return "".join([*parts, "</svg>"])


class _Axis:
    """Ratios on a logarithmic axis, so that twice and half lie equally far from 1."""

    def __init__(self, values: Sequence[float], start: int, end: int) -> None:
        low, high = min(1.0, *values), max(1.0, *values)
        pad = max(0.03, 0.15 * math.log(high / low))
        self._low, self._high = math.log(low) - pad, math.log(high) + pad
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (math.log(max(value, 1e-9)) - self._low) / (self._high - self._low)
        return round(self._start + min(1.0, max(0.0, share)) * (self._end - self._start), 1)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        low, high = math.exp(self._low), math.exp(self._high)
        for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0):
            count = math.floor(high / step) - math.ceil(low / step) + 1
            if count <= POINT_TICKS:
                first = math.ceil(low / step)
                return tuple(
                    (self.place(step * (first + i)), f"{step * (first + i):.2f}".rstrip("0").rstrip("."))
                    for i in range(max(0, count))
                )
        return ((self.place(1.0), "1"),)


def _ratio(held: Mapping[str, Value], key: str, missing: float) -> float:
    value = held.get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else missing


def _rule(style: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _open(title: str, width: int, height: int) -> str:
    label = html.escape(clean(title), quote=True)
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-label="{label}" '
        f'preserveAspectRatio="xMinYMin meet"><title>{label}</title>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(clean(text), quote=True)}</text>'


def _name(style: str) -> str:
    """A class, never anything else."""
    return "".join(c for c in style if c.isascii() and (c.isalnum() or c in "-_"))


def _runs(x: Sequence[float], values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Neighbouring points that are known; a gap stays one."""
    runs: list[list[tuple[float, float]]] = [[]]
    for place, value in zip(x, values, strict=True):
        if value is None or not math.isfinite(value):
            runs.append([])
        else:
            runs[-1].append((place, value))
    return [run for run in runs if run]
