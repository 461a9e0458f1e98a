"""An S3 endpoint of our own (moto) that fails at random, with a seed: errors, lost answers, cut and wrong bodies."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

StartResponse = Callable[..., Any]
FAILURES = ("refused", "answer lost", "cut", "garbage", "slow")


class FlakyApplication:
    """Answers as moto does, but for ``failing_ratio`` of the requests. ``failed`` counts them by kind."""

    def __init__(self, failing_ratio: float, seed: int, slow_s: float) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.failing_ratio, self.slow_s = failing_ratio, slow_s
        self.requests_count = 0
        self.failed: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        with self._lock:
            self.requests_count += 1
            failure = self._random.choice(FAILURES) if self._random.random() < self.failing_ratio else None
            if failure is not None:
                self.failed[failure] += 1
        if failure == "refused":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if failure == "slow":
            time.sleep(self.slow_s)
        answer: list[Any] = []

        def note(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[[bytes], None]:
            answer[:] = status, headers
            return lambda _: None

        body = b"".join(self._application(environ, note))
        status, headers = answer
        if failure == "answer lost":
            start("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        if failure in ("cut", "garbage") and body and environ["REQUEST_METHOD"] == "GET":
            body = body[: len(body) // 2] if failure == "cut" else bytes(reversed(body))
        start(status, headers)
        return [body]


class FlakyEndpoint:
    """The server, in a thread; ``url`` is its address. Without ``failing_ratio`` it is a healthy one."""

    def __init__(self, failing_ratio: float = 0.0, *, seed: int = 0, slow_s: float = 0.5) -> None:
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self.application = FlakyApplication(failing_ratio, seed, slow_s)
        self._server = make_server("127.0.0.1", 0, self.application, threaded=True, request_handler=_Quiet)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def make_bucket(self, name: str, objects: Mapping[str, bytes] | None = None) -> None:
        import botocore.session

        ratio, self.application.failing_ratio = self.application.failing_ratio, 0.0
        client: Any = botocore.session.get_session().create_client("s3", endpoint_url=self.url)
        client.create_bucket(Bucket=name)
        for key, content in (objects or {}).items():
            client.put_object(Bucket=name, Key=key, Body=content)
        client.close()
        self.application.failing_ratio = ratio

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None: ...

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, socket.timeout):  # noqa: UP041  # the client gave up on a body that was cut
            self.close_connection = True


def settings_for(url: str) -> dict[str, str]:
    """Environment variables with which S3's drivers use that endpoint, and nothing of this machine's own."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "NO_PROXY": "127.0.0.1",
    }
