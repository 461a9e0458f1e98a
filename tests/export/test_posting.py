from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler

import pytest

from hotloop.show.export import target
from hotloop.show.export.target import Poster, SendFailed

from .conftest import Answer, Endpoint, answer_with


def raw(data: bytes, every_s: float = 0.0) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        for byte in range(len(data)) if every_s else (slice(None),):
            handler.wfile.write(data[byte : byte + 1] if isinstance(byte, int) else data)
            handler.wfile.flush()
            time.sleep(every_s)
        handler.close_connection = True

    return answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (answer_with(503), "HTTP 503"),
        (answer_with(429), "HTTP 429"),
        (answer_with(400, b"token abc"), "HTTP 400"),
        (answer_with(401), "HTTP 401"),
        (answer_with(302, Location="http://127.0.0.1:9/steal"), r"the endpoint redirects \(HTTP 302\)"),
        (answer_with(307, Location="/again"), r"the endpoint redirects \(HTTP 307\)"),
        (raw(b"\x00\xff garbage, no HTTP\r\n\r\n"), "the response is not HTTP"),
        (raw(b""), "closed|not HTTP|reset"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500), "the response is not HTTP"),
    ],
)
def test_what_went_wrong_is_told_in_our_own_words(endpoint: Endpoint, answer: Answer, text: str) -> None:
    endpoint.answer = answer
    with pytest.raises(SendFailed, match=text) as failed:
        Poster(endpoint.url + "/?token=hidden").post(b"{}", {"Authorization": "Bearer hidden"})
    assert "hidden" not in str(failed.value)
    assert "token" not in str(failed.value)
    assert len(endpoint.posted) == 1  # no redirect was followed


def test_a_silent_endpoint_times_out(endpoint: Endpoint) -> None:
    endpoint.answer = lambda _: time.sleep(0.5)
    with pytest.raises(SendFailed, match="timed out"):
        Poster(endpoint.url, timeout_s=0.1).post(b"{}", {})


def test_an_endless_answer_is_not_kept(endpoint: Endpoint) -> None:
    endpoint.answer = answer_with(200, b"x" * 5_000_000)
    assert len(Poster(endpoint.url).post(b"{}", {})) <= 2 * target.MOST_ANSWER_BYTES
