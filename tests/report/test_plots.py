"""Plots as inline SVG: well formed, escaped, and in proportion."""

from __future__ import annotations

from xml.etree import ElementTree

from hotloop.show.report.document import Bar
from hotloop.show.report.plots import draw_bars

EVIL = "</title><script>alert(1)</script>\"'&\x1b"


def test_texts_are_escaped_and_nothing_has_a_style() -> None:
    svg = draw_bars(EVIL, [Bar(label=EVIL, value=1, shown=EVIL, style='x"/><script>')])
    assert {element.tag for element in ElementTree.fromstring(svg).iter()} <= {"svg", "title", "text", "rect"}
    assert "style=" not in svg
    assert "\x1b" not in svg


def test_bars_are_in_proportion_and_unknown_is_no_bar() -> None:
    svg = draw_bars("t", [Bar(label="a", value=2.0, shown="2"), Bar(label="b", value=None, shown="unknown")])
    long, none = (float(one.get("width", "")) for one in ElementTree.fromstring(svg).iter("rect"))
    assert (long > 100, none) == (True, 0.0)
    assert "unknown" in svg
