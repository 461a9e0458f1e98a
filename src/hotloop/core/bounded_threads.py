"""A server that handles each request in its own thread, with an upper bound on their number."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from typing import Any


class BoundedThreads(ThreadingMixIn):
    """Goes before a server class of the standard library; closes requests beyond ``most_threads`` without a
    response."""

    daemon_threads = True
    block_on_close = False
    most_threads: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._room = threading.BoundedSemaphore(self.most_threads)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)  # type: ignore[attr-defined]  # of the server class

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()
