"""The headers of a request -> whether it may be answered: this machine's name, and the token or the cookie for it."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from email.message import Message
from urllib.parse import parse_qs

TOKEN_FIELD = "token"
LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
"""What a browser calls this machine, also through a tunnel from another port. Any other name is a foreign page's, whose
name server now points here."""
OWN_SITES = frozenset({None, "none", "same-origin"})
"""What Sec-Fetch-Site says of the page's own requests, and of an address that a person typed."""


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
