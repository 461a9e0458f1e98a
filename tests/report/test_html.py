"""The HTML report: as text, and as headless Chromium sees it.

With HOTLOOP_SCREENSHOTS=FOLDER the pages' pictures are kept there, for looking at them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_samples as samples
from chromium_page import CHROMIUM, Page, start_chromium

from hotloop.core.findings import Where
from hotloop.core.report import Health, Report, report_to_json
from hotloop.show.report import render

MANUALS = {"input-bound": samples.MANUAL, "unused": "## What it does\nNothing."}


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def list_elements(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed(html)
    return parser.found


def test_page_is_small_and_names_no_address() -> None:
    html = render("html", samples.input_bound_report(), manuals=MANUALS)
    assert len(html) < 300_000
    assert re.findall(r"(?:https?:)?//[a-z0-9]", re.sub(r"<script.*?</script>", "", html, flags=re.S)) == []
    assert "http" not in html.replace("http-equiv", "")
    for tag, attributes in list_elements(html):
        assert tag not in {"link", "iframe", "object", "embed", "base", "img", "form"}
        assert "src" not in attributes
        assert "style" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert [name for name in attributes if name.startswith("on")] == []


def test_policy_allows_the_two_inline_elements_and_nothing_else() -> None:
    html = render("html", samples.input_bound_report())
    policy = next(a["content"] for t, a in list_elements(html) if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert html.index("Content-Security-Policy") < html.index("<script>")


def test_names_of_the_program_stay_text() -> None:
    report = samples.hostile_report()
    html = render("html", report, manuals={samples.INJECTION: "x"})
    tags = [tag for tag, _ in list_elements(html)]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert "{{7*7}}" in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    data = html.split('id="report-data">')[1].split("</script>")[0]
    assert not set("<>&") & set(data)
    assert json.loads(data) == report_to_json(report)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed")
    with start_chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


PAGES = {
    "input_bound": samples.input_bound_report,
    "straggler": samples.straggler_report,
    "healthy": samples.healthy_report,
    "no_training": samples.no_training_report,
    "hostile": samples.hostile_report,
}


def open_report(page: Page, folder: Path, report: Report, *, dark: bool = False) -> None:
    path = folder / "report.html"
    path.write_text(render("html", report, manuals=MANUALS), encoding="utf-8")
    page.open(path, dark=dark)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_browser_has_nothing_to_complain_about(page: Page, tmp_path: Path, name: str, dark: bool) -> None:
    open_report(page, tmp_path, PAGES[name](), dark=dark)
    assert page.evaluate("document.body.dataset.ready") == "yes"
    assert page.evaluate("document.body.dataset.problems") == "0"
    assert page.evaluate("document.querySelectorAll('img, script:not([id]), iframe').length") == 1
    brightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert brightness < 60 if dark else brightness > 200
    picture = page.screenshot()
    assert picture.startswith(b"\x89PNG")
    assert page.complaints() == []
    kept = os.environ.get("HOTLOOP_SCREENSHOTS")
    if kept:
        (Path(kept) / f"{name}-{'dark' if dark else 'light'}.png").write_bytes(picture)


LONG = "a_long_" * 40


@pytest.mark.parametrize("name", [*PAGES, "long"])
def test_page_fits_a_narrow_screen(page: Page, tmp_path: Path, name: str) -> None:
    report = samples.input_bound_report() if name == "long" else PAGES[name]()
    if name == "long":
        finding = replace(report.findings[0], evidence={LONG: LONG, "num_workers": 0})
        report = replace(
            report,
            findings=(finding,),
            command=(LONG,),
            environment={LONG: LONG},
            health=(Health(level="warning", message=LONG),),
        )
    page.ask("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
    open_report(page, tmp_path, report)
    width = page.evaluate("document.documentElement.scrollWidth")
    page.ask("Emulation.clearDeviceMetricsOverride")
    assert width <= 420


NARROW = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}


@pytest.mark.parametrize("width", [420, 1400])
def test_the_first_screen_answers_what_why_where_what_to_do_what_it_wins_and_how_sure(
    page: Page, tmp_path: Path, width: int
) -> None:
    page.ask("Emulation.setDeviceMetricsOverride", **NARROW | {"width": width})
    report = samples.input_bound_report()
    open_report(page, tmp_path, report)
    box = page.evaluate("document.querySelector('.verdict').getBoundingClientRect().bottom")
    text = page.evaluate("document.querySelector('.verdict').innerText")
    page.ask("Emulation.clearDeviceMetricsOverride")
    assert box < 900
    place = report.findings[0].where[0]
    for answer in (
        report.verdict,
        f"{Path(place.file).name}:{place.line}",
        "To do",
        "35–46%",
        "simulated",
        "past forecasts:",
    ):
        assert answer in text


def test_paths_are_relative_to_the_folder_that_the_run_was_started_in() -> None:
    report = samples.input_bound_report()
    where = (Where(file="/data/project/models/train.py", line=3, function="load"),)
    finding = replace(report.findings[0], where=where, title="/data/project/models/train.py waits")
    named = replace(report, findings=(finding,), run_folder="/data/project/.hotloop/run-1", lines=())
    unnamed = replace(named, run_folder=None, command=("python", "models/train.py"))
    for one in (named, unnamed):
        html = render("html", one)
        assert '<code class="place">models/train.py:3</code>' in html
        assert ">Models/train.py waits</h3>" in html
        assert "`models/train.py:3`" in render("markdown", one)
    assert '<code class="place">/data/project/models/train.py:3</code>' in render(
        "html", replace(named, run_folder=None, command=())
    )


def test_timeline_is_read_with_the_keyboard(page: Page, tmp_path: Path) -> None:
    open_report(page, tmp_path, samples.input_bound_report())
    page.evaluate("document.getElementById('chart-time').focus()")
    page.press("Home")
    assert page.evaluate("document.getElementById('readout').textContent").startswith("steps 0 to 1: ")
    page.press("ArrowRight")
    spoken = page.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    assert re.match(r"steps 2 to 3: \d+ ms per step, input_wait \d+\.\d ms \(\d+\.\d%\), forward", spoken)
    page.press("End")
    assert page.evaluate("document.activeElement.getAttribute('aria-valuenow')") == "59"
    assert "checkpoint 900 ms" in page.evaluate("document.getElementById('readout').textContent")
