"""The local page in headless Chromium while a real training runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from build_runs import build_run
from chromium_page import CHROMIUM, Page, start_chromium
from test_server import HOSTILE, serve

from hotloop.show.report.text import format_number

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium")

TRAINING = """
import pathlib, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while step < 40 or not pathlib.Path("enough").exists():
    loss = model(torch.ones(4, 8)).square().mean() + 3
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    time.sleep(0.01)
    while pathlib.Path("pause").exists():
        time.sleep(0.05)
pathlib.Path("steps").write_text(str(step))
pathlib.Path("loss").write_text(str(loss.item()))
"""


def wait_for(page: Page, expression: str) -> Any:
    deadline_s = time.monotonic() + 30
    while not (found := page.evaluate(expression)):
        assert time.monotonic() < deadline_s, (expression, page.evaluate("document.body.innerText"))
        time.sleep(0.1)
    return found


def read_facts(page: Page) -> dict[str, str]:
    cells = "[one.children[0].textContent, one.querySelector('strong').textContent]"
    return dict(page.evaluate(f"[...document.querySelectorAll('#facts div')].map((one) => {cells})"))


SHOWN_LOSS = (
    "Number([...document.querySelectorAll('#facts div')].filter((one) => one.children[0].textContent === 'loss')"
    ".map((one) => one.querySelector('strong').textContent)[0])"
)


def test_a_training_is_followed_to_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / ".hotloop"
    for name in ("older", HOSTILE):
        build_run(runs, name, outcome={"exit_code": 0, "signal": None}, started_s=1e9, command=("python", HOSTILE))
    (tmp_path / "train.py").write_text(TRAINING)
    words = ["run", "--name", "live", "--no-probe", "--no-deep", "-q", "--watch-numbers", "--steps-total", "1000000"]
    words += ["--", sys.executable, "train.py"]
    training = subprocess.Popen([sys.executable, "-m", "hotloop", *words], cwd=tmp_path)
    give_up_s = time.monotonic() + 60
    while not (runs / "live" / "run.json").exists() and time.monotonic() < give_up_s:
        time.sleep(0.05)
    try:
        with serve(runs) as client, start_chromium(tmp_path / "chromium") as page:
            origin = f"http://127.0.0.1:{client.port}/"
            page.ask("Emulation.setDeviceMetricsOverride", width=420, height=800, deviceScaleFactor=1, mobile=False)
            page.open_address(f"{origin}?token={client.server.gate.token}", dark=True)
            assert page.evaluate("location.href") == origin
            assert page.evaluate("document.cookie") == ""
            check_list(page)
            page.evaluate("document.querySelector('#runs a[href=\"/runs/live/\"]').click()")
            wait_for(page, "document.querySelectorAll('#facts div').length")
            first = int(read_facts(page)["steps"].replace(",", ""))
            wait_for(
                page, f"Number(document.querySelectorAll('#facts strong')[1].textContent.replace(',', '')) > {first}"
            )
            wait_for(page, "!document.querySelector('#chart').hidden")
            assert page.evaluate("document.documentElement.scrollWidth") <= 420
            wait_for(page, f"{SHOWN_LOSS} && {SHOWN_LOSS} >= 3 && {SHOWN_LOSS} < 20")
            assert read_facts(page)["remaining"] != "unknown"
            check_stale(page, tmp_path / "pause", monkeypatch)
            (tmp_path / "enough").touch()
            assert training.wait(timeout=60) == 0
            assert wait_for(page, "document.querySelector('#state').textContent === 'completed'")
            shown = read_facts(page)
            assert shown["steps"].replace(",", "") == (tmp_path / "steps").read_text()
            assert shown["loss"] == format_number(float((tmp_path / "loss").read_text()))
            assert page.evaluate("document.body.dataset.problems") is None
            page.evaluate("document.querySelector('#report a').click()")
            wait_for(page, "document.querySelector('#report-data') !== null")
            assert page.complaints(origin) == []
            assert page.evaluate("document.body.dataset.problems") == "0"
    finally:
        (tmp_path / "enough").touch()  # its training would outlive `hotloop run`
        training.wait(timeout=60)


def check_stale(page: Page, pause: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that stops to step is stale on its page until it steps again."""
    with monkeypatch.context() as patched:
        patched.setattr("hotloop.core.live.STALE_AFTER_S", 1.0)
        pause.touch()
        wait_for(page, "/^stale: no new step for \\d+ s$/.test(document.querySelector('#state').textContent)")
        assert page.evaluate("document.querySelector('#state').className") == "lead t-fair"
        pause.unlink()
        wait_for(page, "document.querySelector('#state').textContent === 'running'")


def check_list(page: Page) -> None:
    """Rows, names that stay text, the filter, and two runs that are chosen."""
    assert page.evaluate("document.querySelectorAll('#runs tbody tr').length") == 3
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate(f"document.querySelector('main').innerText.includes({json.dumps(HOSTILE)})")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.evaluate("filter.focus()")
    page.ask("Input.insertText", text="LIVE")
    assert page.evaluate("document.querySelectorAll('#runs tbody tr:not([hidden])').length") == 1
    page.evaluate("filter.value = ''; filter.dispatchEvent(new Event('input'))")
    assert page.evaluate("document.querySelector('#compare').disabled")
    page.evaluate("document.querySelectorAll('#runs input').forEach((box, at) => { if (at < 2) box.click(); })")
    assert not page.evaluate("document.querySelector('#compare').disabled")
    assert page.evaluate("document.querySelectorAll('#runs input:disabled').length") == 1
