"""Target: a place to export numbers to; and the HTTP POST that ends within seconds and reveals no secret."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hotloop.core.errors import UsageError

from .points import Snapshot

TIMEOUT_S = 5.0
"""For connecting and for every read."""
WHOLE_S = 10.0
"""Time to read a response, however slowly it comes."""
MOST_ANSWER_BYTES = 65_536


class SendFailed(Exception):
    """A snapshot did not arrive. The text goes into the report: it names no URL, header, token or response."""


class Sender(Protocol):
    """An opened target. Its methods are called from one thread of its own and may take seconds."""

    def send(self, snapshot: Snapshot) -> None:
        """Raises SendFailed when the snapshot did not arrive."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``open`` takes the text after ``TARGET=`` and the environment, and raises UsageError where that makes no
    sense; nothing has been started by then."""

    id: str
    summary: str
    where: str
    """The text after ``TARGET=``, for the help."""
    open: Callable[[str, Mapping[str, str]], Sender]


def check_url(url: str, source: str) -> str:
    """``url`` if it can be posted to. Raises UsageError, without the URL in it: that may hold a password."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good or any(character <= " " for character in url):
        raise UsageError(f"{source} is not a URL to which data can be posted: give http://HOST:PORT/... or https://...")
    return url


class Poster:
    """Posts to one URL, one request at a time, and follows no redirect. ``cafile`` is a PEM file that the server's
    certificate is judged by."""

    def __init__(self, url: str, *, cafile: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._login, self._url = _split_login(url)
        self._cafile = cafile
        self._opener: urllib.request.OpenerDirector | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The response's first bytes. Raises SendFailed unless its status is 2xx."""
        request = urllib.request.Request(self._url, data=body, headers={**self._login, **headers}, method="POST")
        try:
            with self._open().open(request, timeout=self._timeout_s) as answer:
                return _read_some(answer)
        except urllib.error.HTTPError as error:
            error.close()
            is_redirect = 300 <= error.code < 400
            what = f"the endpoint redirects (HTTP {error.code})" if is_redirect else f"HTTP {error.code}"
            raise SendFailed(what) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SendFailed(_describe(error)) from None

    def _open(self) -> urllib.request.OpenerDirector:
        if self._opener is None:
            handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
            if self._url.startswith("https:"):  # reading the authorities' certificates takes a while
                context = ssl.create_default_context(cafile=self._cafile)
                handlers.append(urllib.request.HTTPSHandler(context=context))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an error: the headers hold secrets that are not for another server."""


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
    parts = urllib.parse.urlsplit(url)
    if parts.username is None:
        return {}, url
    login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    host = parts.netloc.rpartition("@")[2]
    header = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return header, urllib.parse.urlunsplit(parts._replace(netloc=host))


def _describe(error: BaseException) -> str:
    """The failure, in words that reveal nothing of the URL or the response."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "timed out"
    if isinstance(reason, ssl.SSLError):
        return f"TLS failed ({reason.reason or type(reason).__name__})"
    if isinstance(reason, socket.gaierror):
        return "the endpoint's name is not known"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return f"the response is not HTTP ({type(reason).__name__})"
