"""prometheus: the text format 0.0.4, as a file for node_exporter's textfile collector or as /metrics over HTTP."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from hotloop.core.bounded_threads import BoundedThreads
from hotloop.core.errors import UsageError
from hotloop.core.output_file import open_whole
from hotloop.show.export.points import Snapshot, group_points
from hotloop.show.export.target import Sender, SendFailed, Target

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_SCRAPES = 8
"""At a time; more are turned away."""
_ADDRESS = re.compile(r"(?P<host>|[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})")


def draw_text(snapshot: Snapshot) -> str:
    """All points, grouped by name, each with HELP and TYPE (Prometheus, Exposition formats)."""
    lines = []
    for metric, points in group_points(snapshot):
        name = metric.prometheus_name
        lines.append(f"# HELP {name} {metric.help}")
        lines.append(f"# TYPE {name} {'counter' if metric.is_counter else 'gauge'}")
        lines.extend(
            f"{name}{_draw_labels({'run': snapshot.run.name, **point.attributes})} {point.value!r}" for point in points
        )
    return "\n".join([*lines, ""])


def _draw_labels(attributes: Mapping[str, str]) -> str:
    drawn = ",".join(f'{key.replace(".", "_")}="{_escape(value)}"' for key, value in attributes.items())
    return f"{{{drawn}}}"


def _escape(value: str) -> str:
    value = value.encode("utf-8", "replace").decode()  # half a surrogate pair has no bytes
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _TextFile:
    """A file that always holds one complete snapshot."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, snapshot: Snapshot) -> None:
        try:
            with open_whole(self._path) as file:
                file.write(draw_text(snapshot).encode())
        except OSError as error:
            raise SendFailed(error.strerror or type(error).__name__) from None

    def close(self) -> None:
        """The file stays: the age of its newest row shows that the run has ended."""


class _Page:
    """/metrics over HTTP with the newest snapshot."""

    def __init__(self, host: str, port: int) -> None:
        self._text = b""
        self._server = _Server((host, port), lambda: self._text)
        self.port = int(self._server.server_address[1])
        self._thread: threading.Thread | None = None

    def send(self, snapshot: Snapshot) -> None:
        self._text = draw_text(snapshot).encode()
        if self._thread is None:  # not before the training runs: until then signals are for the main thread alone
            self._thread = threading.Thread(target=self._server.serve_forever, name="hotloop-metrics", daemon=True)
            self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
        self._server.server_close()


class _Server(BoundedThreads, TCPServer):
    most_threads = MOST_SCRAPES
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], get: Any) -> None:
        self.get_text = get
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is not worth a message on the training's terminal."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0
    server_version, sys_version = "hotloop", ""

    def do_GET(self) -> None:
        is_metrics = self.path.split("?")[0] == "/metrics"
        body = self.server.get_text() if is_metrics else b"the numbers are at /metrics\n"
        self.send_response(200 if is_metrics else 404)
        self.send_header("Content-Type", CONTENT_TYPE if is_metrics else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """A scrape is not worth a line on the training's terminal."""


def open_prometheus(where: str, variables: Mapping[str, str]) -> Sender:
    address = _ADDRESS.fullmatch(where)
    if address is None:
        return _TextFile(_check_file(where))
    host, port = address["host"].strip("[]") or "127.0.0.1", int(address["port"])
    try:
        return _Page(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--export prometheus={where}: cannot listen there ({reason}); give another port") from None


def _check_file(where: str) -> Path:
    path = Path(where)
    if path.suffix != ".prom":
        raise UsageError(
            f"--export prometheus={where}: give :PORT, HOST:PORT, or a file whose name ends in .prom, for "
            "node_exporter's textfile collector"
        )
    if not path.parent.is_dir():
        raise UsageError(f"--export prometheus={where}: there is no folder {path.parent}; create it first")
    return path


TARGET = Target(
    id="prometheus",
    summary="Prometheus text: /metrics over HTTP, or a file for node_exporter's textfile collector",
    where=":PORT, HOST:PORT or FILE.prom",
    open=open_prometheus,
)
