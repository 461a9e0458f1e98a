"""A page in headless Chromium, spoken to over the DevTools pipe: what it logs, asks for, shows and answers."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1200,900",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60.0

START = """
import fcntl, os, sys
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands on descriptor 3 and answers on 4; the numbers of our pipes may be these two, swapped."""


class Page:
    """One tab. Everything that the browser reports unasked is kept in ``events``."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._pending = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def open_tab(self) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The browser's answer to one command."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, path: Path, *, dark: bool) -> None:
        """Load a file and wait until its script has run."""
        self.open_address(path.as_uri(), dark=dark)

    def open_address(self, address: str, *, dark: bool) -> None:
        """The same with a page of any address."""
        self.events.clear()
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[theme])
        self.ask("Page.navigate", url=address)
        deadline = time.monotonic() + PATIENCE_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(deadline))

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Tab": 9, "Home": 36, "End": 35, "ArrowLeft": 37, "ArrowRight": 39}[key]
        extra = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(extra if kind == "keyDown" else {}),
            )

    def screenshot(self) -> bytes:
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        return base64.b64decode(data)

    def complaints(self, origin: str = "file:///") -> list[str]:
        """Console messages, uncaught errors, policy violations, dialogs and requests for anything but files, or but
        what an address that begins with ``origin`` serves."""
        found = []
        for event in self.events:
            method, params = event.get("method", ""), event.get("params", {})
            foreign = method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(origin)
            if foreign or method in (
                "Runtime.exceptionThrown",
                "Runtime.consoleAPICalled",
                "Log.entryAdded",
                "Page.javascriptDialogOpening",
            ):
                found.append(json.dumps(event)[:400])
        return found

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._from_browser], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium did not answer in time"
            chunk = os.read(self._from_browser, 1 << 20)
            assert chunk, "Chromium ended"
            self._pending += chunk
        message, _, self._pending = self._pending.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def start_chromium(profile: Path) -> Iterator[Page]:
    """A tab of a browser that ends with the block."""
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    arguments = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(commands_read), str(answers_write), *arguments],
        pass_fds=(commands_read, answers_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_read)
    os.close(answers_write)
    try:
        page = Page(commands_write, answers_read)
        page.open_tab()
        yield page
    finally:
        os.close(commands_write)
        os.close(answers_read)
        process.terminate()
        process.wait(timeout=PATIENCE_S)
