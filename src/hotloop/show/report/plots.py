"""Numbers with names -> inline SVG: lines with a band, and bars.

Classes of report.css give the colors of both themes.

Every text is escaped here. Nothing has a style attribute, which the page's policy forbids.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from .document import Bar, LinePlot
from .text import clean, shorten

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 34
TICKS = 4
BEYOND = 1.5
"""A line may leave the frame's own range by this much of it before it is drawn at the edge."""
BAR_HEIGHT, LABEL_WIDTH, VALUE_WIDTH = 22, 190, 130


def draw_lines(series: LinePlot) -> str:
    """Lines over x with a legend. The frame follows the band and the first line; others are cut at its edge."""
    x, lines, band, mark_x = series.x, series.lines, series.band, series.mark_x
    frame = [*lines[0].values, *(band[0] if band else ()), *(band[1] if band else ())]
    known = [value for value in frame if value is not None and math.isfinite(value)]
    if not x or not known:
        return ""
    low, high = min(known), max(known)
    wide = (high - low) or abs(high) or 1.0
    others = [v for line in lines[1:] for v in line.values if v is not None and math.isfinite(v)]
    low = min([low, *(max(v, low - BEYOND * wide) for v in others)])
    high = max([high, *(min(v, high + BEYOND * wide) for v in others)])
    pad = 0.05 * ((high - low) or abs(high) or 1.0)
    low, high = low - pad, high + pad
    first, last = min(x), max(x)

    def at_x(value: float) -> float:
        share = (value - first) / (last - first) if last > first else 0.5
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
    for value, anchor in {first: "start", last: "end"}.items():
        parts.append(_text(at_x(value), HEIGHT - BOTTOM + 16, _tick(value), anchor))
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
            parts.append(f'<polyline class="line {_name(line.style)}" points="{points}"/>')
            if len(run) == 1 or len(x) <= 12:
                parts += [
                    f'<circle class="dot {_name(line.style)}" cx="{at_x(a):.1f}" cy="{at_y(b):.1f}" r="3"/>'
                    for a, b in run
                ]
    at = float(LEFT)
    for style, name in [*((line.style, line.name) for line in lines), *([("band", "allowed")] if band else [])]:
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
