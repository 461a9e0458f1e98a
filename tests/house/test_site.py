"""The documentation's site, as headless Chromium sees it from the disk; `make site` builds it."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .load_script import ROOT, load_script

SITE = ROOT / "site"


chromium_page = load_script("../tests/report/chromium_page")
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


def test_every_page_is_in_the_navigation_once() -> None:
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = read_nav()
    assert sorted(listed) == sorted(written), "add the page to nav in zensical.toml"


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
