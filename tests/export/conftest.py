"""A server that answers as a test says, and runs that are shown to targets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

Answer = Callable[[BaseHTTPRequestHandler], None]


class Endpoint:
    """What was posted to it, and where it is."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answer: Answer = answer_with(200, b"{}")
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                endpoint.posted.append(json.loads(body))
                endpoint.headers.append(dict(self.headers.items()))
                endpoint.paths.append(self.path)
                endpoint.answer(self)

            def log_message(self, *_: Any) -> None: ...

        class Server(HTTPServer):
            def handle_error(self, *_: Any) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()


def answer_with(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()
