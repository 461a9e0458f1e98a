"""Requests of a browser on this machine -> the pages over a folder of runs; without the token, nothing at all."""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

from hotloop.core.bounded_threads import BoundedThreads
from hotloop.core.errors import RecordingError, UsageError

from . import pages
from .drawing import DrawnPages
from .listing import Listing, LiveFolder, RunEntry, State, stamp_files
from .live import LiveFeeds

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 64
MOST_STREAMS = 16
"""Live pages that are open at the same time."""
PATIENCE_S = 10.0
PUSH_S = 1.0
REPORT_AGE_S = 10.0
"""How long the report of a running training is shown before it is drawn again."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
TOKEN_FIELD = "token"
LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
"""Names of this machine in a browser, also through a tunnel from another port. Any other name is a foreign page's,
whose name server now points here."""
OWN_SITES = frozenset({None, "none", "same-origin"})
"""Values of Sec-Fetch-Site for the page's own requests, and of an address that a person typed."""
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"


class Gate:
    """Holds the token of the printed address, and the secret of the cookie that a browser gets in exchange."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._secret = secrets.token_urlsafe(32)
        self._cookie = f"hotloop_{secrets.token_hex(4)}"
        """A name of its own: cookies of 127.0.0.1 are shared by all ports."""

    @property
    def cookie(self) -> str:
        """The value of Set-Cookie."""
        return f"{self._cookie}={self._secret}; HttpOnly; SameSite=Strict; Path=/"

    def is_local(self, headers: Message) -> bool:
        hosts = headers.get_all("Host", [])
        return len(hosts) == 1 and LOCAL_HOST.fullmatch(hosts[0].strip().lower()) is not None

    def has_token(self, target: str) -> bool:
        given = parse_qs(target.partition("?")[2]).get(TOKEN_FIELD, [])
        return len(given) == 1 and _equal(given[0], self.token)

    def has_cookie(self, headers: Message) -> bool:
        if headers.get("Sec-Fetch-Site") not in OWN_SITES:
            return False
        given = read_cookies(headers).get(self._cookie, "")
        return _equal(given, self._secret)


def read_cookies(headers: Message) -> Mapping[str, str]:
    """Cookies by name. Those of other programs on this machine come along, in whatever form they have."""
    pairs = (part.strip().partition("=") for line in headers.get_all("Cookie", []) for part in line.split(";"))
    return {name: value for name, _, value in pairs}


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


class PageServer(BoundedThreads, HTTPServer):
    """Serves the runs in a folder on a port of this machine (0: a free one) until ``close``.

    Raises UsageError where the port cannot be had.
    """

    most_threads = MOST_CONNECTIONS
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, runs: Path, port: int, make_reader: Callable[[Path], LiveFolder]) -> None:
        self.listing = Listing(runs, make_reader)
        self.gate = Gate()
        self.drawn = DrawnPages()
        self.feeds = LiveFeeds(make_reader)
        self.over = threading.Event()
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.assets = {name: (kind, _read_assets(*parts)) for name, kind, parts in ASSETS}
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"cannot listen on {ADDRESS}:{port}: {reason}; choose another --port, or leave it out for a free one"
            ) from None

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{ADDRESS}:{self.server_address[1]}/?{TOKEN_FIELD}={self.gate.token}"

    def close(self) -> None:
        self.over.set()
        self.drawn.stop()
        self.server_close()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A browser that went away is not worth a message."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


ASSETS = (
    (
        "page.css",
        "text/css; charset=utf-8",
        (("hotloop.show.report", "report.css"), ("hotloop.show.serve", "page.css")),
    ),
    ("page.js", "text/javascript; charset=utf-8", (("hotloop.show.serve", "page.js"),)),
)


def _read_assets(*parts: tuple[str, str]) -> bytes:
    return b"".join((resources.files(package) / "static" / name).read_bytes() for package, name in parts)


def _decode_name(quoted: str) -> str:
    """A folder's name, whatever bytes it has, as pages.path_of writes it."""
    return os.fsdecode(unquote_to_bytes(quoted))


class Handler(BaseHTTPRequestHandler):
    """One request. Its connection ends with the response."""

    server: PageServer
    timeout = PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests of foreign programs are not printed on the terminal."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A request that is not a GET or cannot be read: an empty response."""
        headers = getattr(self, "headers", None)
        is_known = headers is not None and self.server.gate.is_local(headers) and self.server.gate.has_cookie(headers)
        self._answer(405 if code == 501 and is_known else code if is_known else 403)

    def do_GET(self) -> None:
        gate = self.server.gate
        if not gate.is_local(self.headers):
            self._answer(403)
        elif gate.has_token(self.path):
            self._answer(303, headers={"Location": "/", "Set-Cookie": gate.cookie})
        elif not gate.has_cookie(self.headers):
            self._answer(403)
        else:
            self._route()

    def _route(self) -> None:
        path, _, query = self.path.partition("?")
        words = [_decode_name(word) for word in path.split("/")[1:]]
        match words:
            case [""]:
                self._send_page(pages.draw_list(self.server.listing.runs, *self.server.listing.read()))
            case ["favicon.ico"]:
                self._answer(204)
            case [asset] if asset in self.server.assets:
                kind, content = self.server.assets[asset]
                self._answer(200, content, kind)
            case ["compare"]:
                self._compare(parse_qs(query).get("run", []))
            case ["runs", name, *rest]:
                entry = self.server.listing.read_one(name)
                if entry is None:
                    self._send_note(404, f"The run {name!r} no longer exists, or never did.")
                else:
                    self._send_run(entry, rest)
            case _:
                self._send_note(404, "There is no such page.")

    def _send_run(self, entry: RunEntry, rest: list[str]) -> None:
        folder = self.server.listing.runs / entry.name
        match rest:
            case [""]:
                self._send_page(pages.draw_run(entry))
            case ["report"]:
                age = int(time.time() / REPORT_AGE_S) if entry.state.is_live else 0
                self._send_drawn(["report", str(folder), "--format", "html", "--exit-zero"], folder, age=age)
            case ["events"]:
                self._stream(entry)
            case _:
                self._send_note(404, "There is no such page.")

    def _compare(self, names: list[str]) -> None:
        entries = [self.server.listing.read_one(_decode_name(name)) for name in names[:2]]
        found = [entry for entry in entries if entry is not None]
        if len(names) != 2 or len(found) != 2:
            self._send_note(400, "Choose two runs in the list to compare them.")
            return
        found.sort(key=lambda entry: entry.started_wall_s or 0.0)
        folders = [self.server.listing.runs / entry.name for entry in found]
        age = int(time.time() / REPORT_AGE_S) if any(entry.state.is_live for entry in found) else 0
        self._send_drawn(["diff", *map(str, folders), "--format", "html"], *folders, age=age)

    def _send_drawn(self, words: list[str], *folders: Path, age: int) -> None:
        """A page that hotloop draws from entire recordings."""
        try:
            html = self.server.drawn.draw(words, (age, stamp_files(*folders)))
            policy = pages.policy_of(html)
        except RecordingError as error:
            self._send_note(500, f"This page cannot be drawn: {error}")
        else:
            self._answer(200, pages.add_way_back(html), HTML, {"Content-Security-Policy": policy})

    def _stream(self, entry: RunEntry) -> None:
        """Server-sent events: once a second what a live page shows, until the run is over."""
        streams = self.server.streams
        if not streams.acquire(blocking=False):
            self._answer(503)
            return
        try:
            self._start(200, "text/event-stream", {})
            while True:
                content = self.server.feeds.read(self.server.listing.runs / entry.name, entry)
                self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())
                self.wfile.flush()
                if not entry.state.is_live or self.server.over.wait(PUSH_S):
                    return
                gone = RunEntry(name=entry.name, state=State.BROKEN, detail="its folder was deleted")
                entry = self.server.listing.read_one(entry.name) or gone
        except OSError:
            return  # the page was closed
        finally:
            streams.release()

    def _send_page(self, html: str) -> None:
        self._answer(200, html.encode("utf-8", "replace"), HTML)

    def _send_note(self, code: int, text: str) -> None:
        self._answer(code, pages.draw_note(text).encode("utf-8", "replace"), HTML)

    def _answer(
        self, code: int, content: bytes = b"", kind: str = TEXT, headers: Mapping[str, str] | None = None
    ) -> None:
        self._start(code, kind, {"Content-Length": str(len(content)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(content)

    def _start(self, code: int, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response_only(code)
        for name, value in {**HEADERS, "Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
