"""Command lines, URLs and source lines -> the same text without secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:api[-_]?key|apikey|access[-_]?key|secret(?:[-_]?key)?|token|password|passwd|pwd|passphrase|credentials?"
    r"|auth|bearer|private[-_]?key|client[-_]?secret|key)(?:$|[-_.])",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{12,}|xox[abpr]-[\w-]{8,}|ya29\.[\w.-]{16,}|eyJ[\w-]{10,}\.[\w-]{6,}\.?[\w-]*)"
)
_LONG_HEX = re.compile(r"\b[0-9a-fA-F]{32,}\b")
_URL_LOGIN = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)[^/\s@'\"]+@")
_URL_QUERY = re.compile(
    r"(?P<name>[?&;][\w.-]*(?:token|key|secret|sig|signature|password|auth)[\w.-]*=)[^&\s'\"]+", re.I
)
_ASSIGNMENT = re.compile(
    r"(?P<name>[\w.-]*(?:api[-_]?key|token|secret|passw(?:or)?d|credential|auth)[\w.-]*['\"]?\s*[=:]\s*)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s,;)]+)",
    re.IGNORECASE,
)


def redact_text(text: str) -> str:
    """Text with logins in URLs, well-known token forms and values assigned to secret names hidden.

    >>> redact_text("curl https://me:pw@host/x?token=abc")
    'curl https://***@host/x?token=***'
    >>> redact_text('login(token="abcdef")')
    'login(token=***)'
    """
    text = _URL_LOGIN.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _URL_QUERY.sub(rf"\g<name>{HIDDEN}", text)
    text = _ASSIGNMENT.sub(rf"\g<name>{HIDDEN}", text)
    text = _SECRET_VALUE.sub(HIDDEN, text)
    return _LONG_HEX.sub(HIDDEN, text)


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of secret options hidden.

    >>> redact_command(["train.py", "--api-key", "abc", "--lr=0.1", "WANDB_API_KEY=xyz"])
    ('train.py', '--api-key', '***', '--lr=0.1', 'WANDB_API_KEY=***')
    """
    out: list[str] = []
    hide_next = False
    for word in words:
        if hide_next and not (word.startswith("--") and len(word) > 2):
            out.append(HIDDEN)
            hide_next = False
            continue
        hide_next = False
        name, separator, _ = word.partition("=")
        bare = name.lstrip("-")
        secret = bool(_SECRET_NAME.search(bare)) and " " not in bare
        if separator and secret:
            out.append(f"{name}={HIDDEN}")
        else:
            hide_next = secret and word.startswith("-")
            out.append(redact_text(word))
    return tuple(out)
