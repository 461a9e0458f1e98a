"""Text -> ASCII for streams that can show nothing else: common signs in their plain form, the rest as escapes."""

from __future__ import annotations

_PLAIN = str.maketrans({"µ": "u", "–": "-", "×": "x", "·": "|", "…": "..."})


def to_ascii(text: str) -> str:
    """``text`` in ASCII.

    >>> to_ascii("20–39% of 12 µs, é")
    '20-39% of 12 us, \\\\xe9'
    """
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def replace_unknown(error: UnicodeError) -> tuple[str, int]:
    """What a stream shows in place of characters that its encoding lacks; a handler for ``codecs.register_error``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_ascii(error.object[error.start : error.end]), error.end
