"""Numbers with names -> inline SVG: bars.

Classes of report.css give the colors of both themes.

Every text is escaped here. Nothing has a style attribute, which the page's policy forbids.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from .document import Bar
from .text import clean, shorten

WIDTH = 560
BAR_HEIGHT, LABEL_WIDTH, VALUE_WIDTH = 22, 190, 130


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
