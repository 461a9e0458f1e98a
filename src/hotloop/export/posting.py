"""Bytes -> an HTTP POST that ends within seconds, follows no redirect and tells no secret."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from hotloop.core.errors import UsageError

from .target import SendFailed

TIMEOUT_S = 5.0
"""For connecting and for every read."""
WHOLE_S = 10.0
"""For all of it: an endpoint that sends a byte now and then is cut off."""
MOST_ANSWER_BYTES = 65_536
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


def check_url(url: str, source: str) -> str:
    """``url`` if it can be posted to. Raises UsageError, without the URL in it: that may hold a password."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good or any(character <= " " for character in url):
        raise UsageError(f"{source} is no URL that can be posted to: give http://HOST:PORT/... or https://...")
    return url


class Poster:
    """Posts to one URL, one request at a time. ``cafile`` is a PEM file that the server's certificate is judged by."""

    def __init__(self, url: str, *, cafile: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        login, self._url = _split_login(url)
        self._login = login
        self._cafile = cafile
        self._opener: urllib.request.OpenerDirector | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The answer's first bytes. Raises SendFailed unless its status is 2xx."""
        request = urllib.request.Request(self._url, data=body, headers={**self._login, **headers}, method="POST")
        watch = threading.Timer(WHOLE_S, self._cut_off)
        watch.daemon = True
        watch.start()
        try:
            with self._open().open(request, timeout=self._timeout_s) as answer:
                return _read_some(answer)
        except urllib.error.HTTPError as error:
            error.close()
            is_redirect = 300 <= error.code < 400
            what = f"the endpoint redirects (HTTP {error.code})" if is_redirect else f"HTTP {error.code}"
            raise SendFailed(what, may_retry=error.code in _RETRIED) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SendFailed(_describe(error), may_retry=True) from None
        finally:
            watch.cancel()
            self._connection = None

    def _open(self) -> urllib.request.OpenerDirector:
        if self._opener is None:
            handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), _HttpHandler(self._note)]
            if self._url.startswith("https:"):  # reading the authorities' certificates takes a while
                handlers.append(_HttpsHandler(self._note, ssl.create_default_context(cafile=self._cafile)))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener

    def _note(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def _cut_off(self) -> None:
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it is closed already


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an error: the headers hold secrets that are not for another server."""


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, note: Any) -> None:
        super().__init__()
        self._note = note

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._connect, req)

    def _connect(self, host: str, **settings: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(host, **settings)
        self._note(connection)
        return connection


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, note: Any, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._note, self._settings = note, {"context": context}

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._connect, req, **self._settings)

    def _connect(self, host: str, **settings: Any) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(host, **settings)
        self._note(connection)
        return connection


def _read_some(answer: Any) -> bytes:
    """At most MOST_ANSWER_BYTES, and no longer than WHOLE_S."""
    until_s = time.monotonic() + WHOLE_S
    parts: list[bytes] = []
    while sum(map(len, parts)) < MOST_ANSWER_BYTES and time.monotonic() < until_s:
        part = answer.read1(MOST_ANSWER_BYTES)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _split_login(url: str) -> tuple[dict[str, str], str]:
    """``user:password@`` as a header, and the URL without it: urllib would take it for a part of the host's name."""
    import base64

    parts = urllib.parse.urlsplit(url)
    if parts.username is None:
        return {}, url
    login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    host = parts.netloc.rpartition("@")[2]
    header = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return header, urllib.parse.urlunsplit(parts._replace(netloc=host))


def _describe(error: BaseException) -> str:
    """What went wrong, in words that hold nothing of the URL or of the answer."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "timed out"
    if isinstance(reason, ssl.SSLError):
        return f"TLS failed ({reason.reason or type(reason).__name__})"
    if isinstance(reason, socket.gaierror):
        return "the endpoint's name is not known"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return f"the answer is no HTTP ({type(reason).__name__})"
