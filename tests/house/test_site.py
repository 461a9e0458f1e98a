"""The documentation's site, as headless Chromium sees it from the disk; `make site` builds it."""

import importlib.util
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .load_script import ROOT

SITE = ROOT / "site"
LONGEST_CELL = 170
"""Characters of prose: about two lines of a page."""


def load_chromium_page() -> Any:
    """tests/report/chromium_page.py, which lies beside the tests of reports."""
    path = ROOT / "tests" / "report" / "chromium_page.py"
    spec = importlib.util.spec_from_file_location("chromium_page_of_the_site", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


chromium_page = load_chromium_page()
needs_site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="site/ is not built: make site")
needs_chromium = pytest.mark.skipif(not chromium_page.CHROMIUM.exists(), reason="no Chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium_page.start_chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def pages_of(nav: Any) -> list[str]:
    """The Markdown files of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    if isinstance(nav, dict):
        return [page for part in nav.values() for page in pages_of(part)]
    return [page for part in nav for page in pages_of(part)]


def read_nav() -> list[str]:
    return pages_of(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])


def html_of(name: str) -> Path:
    return SITE / Path(name).with_suffix(".html")


def complaints(page: Any) -> list[str]:
    """What went wrong since the page was opened; pictures inside the style sheets are no requests."""
    return [one for one in page.complaints() if '"url": "data:image/' not in one]


def wait_for(page: Any, expression: str) -> Any:
    deadline = time.monotonic() + 20
    while not (found := page.evaluate(expression)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_every_page_is_in_the_navigation_once() -> None:
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = read_nav()
    assert sorted(listed) == sorted(written), "add the page to nav in zensical.toml"


def long_cells(page: str) -> list[str]:
    """Cells of tables that are paragraphs; names and code in backticks do not count."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    rows = [line for line in page.splitlines() if line.startswith("|")]
    return [cell for row in rows for cell in row.split("|") if len(re.sub(r"`[^`]*`", "", cell)) > LONGEST_CELL]


def test_no_table_of_the_guide_or_the_reference_has_a_paragraph_in_a_cell() -> None:
    _, guide, reference, *_ = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    names = pages_of([guide, reference])
    assert {"tune.md", "formats.md"} <= set(names)
    found = {name: long_cells((ROOT / "docs" / name).read_text(encoding="utf-8")) for name in names}
    assert {name: cells for name, cells in found.items() if cells} == {}
    assert long_cells(f"| a | {'word ' * 50} |\n") != []


@needs_site
@needs_chromium
def test_every_page_opens_from_the_disk_without_errors_requests_or_sideways_scrolling(page: Any) -> None:
    for name in read_nav():
        page.open(html_of(name), dark=False)
        (title, *_) = re.findall(r"^# (.+)$", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert page.evaluate("document.querySelector('h1').innerText").rstrip("¶") == re.sub(r"[`*]", "", title)
        assert complaints(page) == [], name
        page.ask("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, f"{name} scrolls sideways on a phone"
        page.ask("Emulation.clearDeviceMetricsOverride")


@needs_site
@needs_chromium
def test_the_navigation_of_the_first_page_lists_every_other(page: Any) -> None:
    page.open(html_of("index.md"), dark=False)
    links = page.evaluate("[...document.querySelectorAll('nav a[href]')].map(a => a.href.split('#')[0])")
    assert {html_of(name).as_uri() for name in read_nav()} - set(links) == set()


@needs_site
@needs_chromium
def test_a_click_opens_a_page_and_the_search_finds_its_text(page: Any) -> None:
    page.open(html_of("index.md"), dark=False)
    page.events.clear()
    page.evaluate("[...document.querySelectorAll('nav a')].find(a => a.href.endsWith('/how-it-works.html')).click()")
    deadline = time.monotonic() + chromium_page.PATIENCE_S
    while not any(event.get("method") == "Page.loadEventFired" for event in page.events):
        page.events.append(page._read(deadline))
    assert page.evaluate("location.href") == html_of("how-it-works.md").as_uri()
    page.evaluate("document.querySelector('.md-search__button').click()")
    wait_for(page, "[...document.querySelectorAll('div')].some(one => one.shadowRoot)")
    page.ask("Input.insertText", text="straggler")
    results = "[...document.querySelectorAll('div')].find(one => one.shadowRoot).shadowRoot.querySelectorAll('ol a')"
    assert wait_for(page, f"[...{results}].some(one => one.href.endsWith('/rules.html?h=#straggler'))")
    assert complaints(page) == []
