"""The local page over HTTP: what it tells whom, and that names stay text."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest
from build_runs import build_run

from hotloop.pipeline.live import LiveReader
from hotloop.show.serve import server as serving
from hotloop.show.serve.server import PageServer
from tests.waiting import wait_until

HOSTILE = "<img src=x onerror=alert(1)>"
PATHS = (
    "/",
    "/page.js",
    "/page.css",
    "/runs/one/",
    "/runs/one/report",
    "/runs/one/events",
    "/compare",
    "/x",
    "/favicon.ico",
)


class Client:
    """Asks a server, as a browser does after it was given the address."""

    def __init__(self, server: PageServer) -> None:
        self.server = server
        self.port = server.server_address[1]
        answer = self.ask(f"/?token={server.gate.token}", cookie=False)
        self.cookie = str(answer.getheader("Set-Cookie"))

    def ask(self, path: str, *, cookie: bool = True, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if cookie:
            headers["Cookie"] = f"other=1; {self.cookie.partition(';')[0]}"
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse()

    def read(self, path: str) -> str:
        return self.ask(path).read().decode()


@contextlib.contextmanager
def serve(runs: Path) -> Iterator[Client]:
    server = PageServer(runs, 0, LiveReader)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Client(server)
    finally:
        server.shutdown()
        server.close()
        thread.join()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    build_run(tmp_path, "one")
    with serve(tmp_path) as found:
        yield found


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "X"])
def test_without_the_token_nothing_is_served(client: Client, method: str) -> None:
    for path in (
        *PATHS,
        "//[",
        "*",
        "/?token=",
        "/?token=wrong",
        f"/?token={client.server.gate.token}x",
        "/?token=a&token=b",
    ):
        answer = client.ask(path, cookie=False, method=method)
        assert (answer.status, answer.read(), answer.getheader("Set-Cookie")) == (403, b"", None), path
        answer = client.ask(path, cookie=False, method=method, Cookie=client.cookie.partition("=")[0] + "=guess")
        assert (answer.status, answer.read()) == (403, b""), path


def test_the_token_is_given_for_a_cookie_that_scripts_cannot_read(client: Client) -> None:
    answer = client.ask(f"/?token={client.server.gate.token}", cookie=False)
    assert (answer.status, answer.getheader("Location"), answer.read()) == (303, "/", b"")
    assert client.cookie.endswith("; HttpOnly; SameSite=Strict; Path=/")
    assert client.server.gate.token not in client.cookie


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "", "127.0.0.2", "[::2]:80"]
)
def test_another_host_name_is_refused_even_with_the_token(client: Client, host: str) -> None:
    for path in ("/", f"/?token={client.server.gate.token}"):
        answer = client.ask(path, Host=host)
        assert (answer.status, answer.read()) == (403, b"")


def test_only_get_is_answered(client: Client) -> None:
    for method in ("POST", "HEAD", "DELETE"):
        answer = client.ask("/", method=method)
        assert (answer.status, answer.read()) == (405, b"")


def test_headers_forbid_what_the_page_does_not_need(client: Client) -> None:
    headers = client.ask("/").headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert (headers["Cross-Origin-Resource-Policy"], headers["Cache-Control"]) == ("same-origin", "no-store")


@pytest.mark.parametrize(
    "name",
    ["..", "../one", "%2e%2e", "%2e%2e%2fone", "..%2f..%2fetc%2fpasswd", "/etc", "one%00", "one/../one", "%ff", "link"],
)
def test_a_run_is_a_name_in_the_list_and_nothing_else(client: Client, tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "one")
    for rest in ("/", "/report", "/events"):
        assert client.ask(f"/runs/{name}{rest}").status == 404
    assert client.ask(f"/compare?run={name}&run=one").status == 400


def test_hostile_names_are_text(tmp_path: Path) -> None:
    strange = os.fsdecode(b"caf\xe9 \xff")
    folder = build_run(
        tmp_path, HOSTILE, outcome={"exit_code": 0, "signal": None}, command=("python", HOSTILE, "\x1b[31m'\"")
    )
    (folder / "verdict.json").write_text(json.dumps({"verdict": f"waits for {HOSTILE} \u202e"}))
    build_run(tmp_path, strange)
    (tmp_path / "<b>" / "processes").mkdir(parents=True)
    (tmp_path / "<b>" / "processes" / "<script>-1-0-0.hlr").write_text("x")
    with serve(tmp_path) as client:
        pages = [
            client.read(path)
            for path in ("/", f"/runs/{quote(HOSTILE, safe='')}/", f"/runs/{quote(os.fsencode(strange))}/")
        ]
        note = client.read("/runs/<script>alert(1)<%2Fscript>/")
    for html in (*pages, note):
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", html)  # no value of an attribute
        assert re.search(r"<(img|b)\b|<[^>]* on\w+=|[\x1b\u202e]", bare) is None
        assert html.count("<script") == 1
    assert min(page.count(escape(HOSTILE)) for page in pages[:2]) >= 3
    assert escape("<script>-1-0-0.hlr is not a hotloop recording") in pages[0]
    assert "waits for" not in pages[2]


def test_a_stream_shows_the_run_until_it_is_over(client: Client, tmp_path: Path) -> None:
    answer = client.ask("/runs/one/events")
    assert answer.getheader("Content-Type") == "text/event-stream"
    first = json.loads(answer.readline()[6:])
    assert (first["state"], first["is_over"]) == ("running", False)
    assert first["facts"][0] == ["step time", "10.0 ms", "mean of the last 20"]
    assert first["facts"][1] == ["steps", "20", ""]
    assert first["phases"][2] == ["forward", 0.25, "25.0%", "2.50 ms"]
    (tmp_path / "one" / "outcome.json").write_text('{"exit_code": 1, "signal": null}')
    rest = answer.read().decode().split("data: ")
    assert json.loads(rest[-1])["state"] == "failed: exit code 1"


def test_connections_are_bounded(client: Client) -> None:
    held = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(serving.MOST_CONNECTIONS)]
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        client.ask("/")
    for one in held:
        one.close()

    def answers() -> bool:
        with contextlib.suppress(http.client.RemoteDisconnected, ConnectionResetError):
            return client.ask("/").status == 200
        return False

    assert wait_until(answers)


def test_a_report_is_drawn_once_and_a_comparison_beside_it(tmp_path: Path) -> None:
    for name in ("one", "zwei läufe"):
        build_run(tmp_path, name, outcome={"exit_code": 0, "signal": None})
    with serve(tmp_path) as client:
        answer = client.ask("/runs/one/report")
        html = answer.read().decode()
        assert "hotloop run: " in html
        assert '<a href="/">All runs</a>' in html
        policy = answer.getheader("Content-Security-Policy") or ""
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert policy.endswith("frame-ancestors 'none'")
        began_s = time.monotonic()
        assert client.read("/runs/one/report") == html
        assert time.monotonic() - began_s < 0.5
        assert "hotloop diff: " in client.read(f"/compare?run=one&run={quote(quote('zwei läufe'))}")
        assert [client.ask(f"/compare{query}").status for query in ("", "?run=one", "?run=one&run=one&run=one")] == [
            400
        ] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    build_run(tmp_path, "one")
    command = [sys.executable, "-m", "hotloop", "serve", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    host, _, query = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host)
    connection.request("GET", f"/{query}")
    cookie = str(connection.getresponse().getheader("Set-Cookie"))
    stream = http.client.HTTPConnection(host)
    stream.request("GET", "/runs/one/events", headers={"Cookie": cookie.partition(";")[0]})
    assert stream.getresponse().readline().startswith(b"data: ")
    process.send_signal(number)
    assert process.communicate(timeout=5) == ("", "hotloop: press Ctrl-C to stop\n")
    assert process.returncode == 0


def test_a_link_inside_a_run_is_not_followed(client: Client, tmp_path: Path) -> None:
    (tmp_path / "one" / "probe.json").symlink_to("/etc/passwd")
    answer = client.ask("/runs/one/report")
    assert (answer.status, "probe.json is a link" in answer.read().decode()) == (500, True)
    assert "probe.json is a link" in json.loads(client.ask("/runs/one/events").readline()[6:])["problem"]
