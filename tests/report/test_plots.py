"""Plots as inline SVG: well formed, escaped, within their frame, and on the page of a tuning."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import report_samples as samples

from hotloop.core.report import Report, report_to_json
from hotloop.core.tuning import Trial, TrialVerdict, Tuning
from hotloop.show.report import render
from hotloop.show.report.document import Bar, LinePlot, PlotLine
from hotloop.show.report.plots import HEIGHT, WIDTH, draw_bars, draw_lines

EVIL = "</title><script>alert(1)</script>\"'&\x1b"


def points_of(svg: str) -> list[list[tuple[float, float]]]:
    lines = ElementTree.fromstring(svg).iter("polyline")
    return [[(float(a), float(b)) for a, b in (p.split(",") for p in one.get("points", "").split())] for one in lines]


def draw(x: list[float], *lines: PlotLine, title: str = "t", **more: Any) -> str:
    return draw_lines(LinePlot(title=title, alt=title, x=x, lines=lines, x_name=title, **more))


def test_a_line_far_off_is_cut_at_the_edge_and_a_gap_stays_a_gap() -> None:
    svg = draw(
        [1, 2, 3, 4],
        PlotLine(name="baseline", style="base", values=[1.0, 0.9, 0.8, 0.7]),
        PlotLine(name="candidate", style="own", values=[1.0, math.nan, 1e30, 0.7]),
        band=([0.9, 0.8, 0.7, 0.6], [1.1, 1.0, 0.9, 0.8]),
        mark_x=3,
    )
    base, *own = points_of(svg)
    assert [len(one) for one in (base, *own)] == [4, 1, 2]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for line in (base, *own) for x, y in line)
    assert base[0][1] < base[-1][1], "a falling loss falls"
    assert next(y for _, y in own[1]) < base[2][1]
    assert svg.count('class="mark"') == 1


def test_texts_are_escaped_and_nothing_has_a_style() -> None:
    line = PlotLine(name=EVIL, style='x"/><script>', values=[1.0, 2.0])
    for svg in (draw([0, 1], line, title=EVIL), draw_bars(EVIL, [Bar(label=EVIL, value=1, shown=EVIL)])):
        tags = {element.tag for element in ElementTree.fromstring(svg).iter()}
        assert tags <= {"svg", "title", "line", "text", "polyline", "circle", "rect", "polygon"}
        assert "style=" not in svg
        assert "\x1b" not in svg


def test_bars_are_in_proportion_and_unknown_is_no_bar() -> None:
    svg = draw_bars("t", [Bar(label="a", value=2.0, shown="2"), Bar(label="b", value=None, shown="unknown")])
    long, none = (float(one.get("width", "")) for one in ElementTree.fromstring(svg).iter("rect"))
    assert (long > 100, none) == (True, 0.0)
    assert "unknown" in svg


def tuned(name: str = "bf16-autocast") -> Report:
    curve = {
        "status": "rejected",
        "reason": "diverged: the loss of step 3 is nan",
        "left_at_step": 3,
        "steps": [1, 2, 3],
        "baseline": [3.0, 2.0, 1.0],
        "low": [2.9, 1.9, 0.9],
        "high": [3.1, 2.1, 1.1],
        "candidate": [3.0, 2.5, None],
    }
    trial = Trial(
        id=name,
        techniques=(name,),
        settings={},
        verdict=TrialVerdict.REJECTED,
        reason="diverged",
        n=0,
        unit="step",
        quality={"status": "rejected", "reason": "diverged", "loss": curve, "gradient_norm": {"status": "unknown"}},
    )
    tuning = Tuning(verdict="nothing was proven", goal="speed", strategy_file="fast.toml", trials=(trial,))
    return replace(samples.input_bound_report(), tune=tuning)


def test_a_rejected_candidate_is_shown_with_its_plot() -> None:
    html = render("html", tuned())
    (figure,) = re.findall(r"<figure.*?</figure>", html, flags=re.S)
    assert "bf16-autocast: loss" in figure
    assert "it left the allowed range at step 3" in figure
    assert "diverged: the loss of step 3 is nan" in figure
    assert 'class="band"' in figure
    assert "style=" not in figure
    assert report_to_json(tuned())["tune"]["trials"][0]["quality"]["loss"]["left_at_step"] == 3
