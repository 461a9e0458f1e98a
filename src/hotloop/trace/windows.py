"""The bytes of a Chrome trace -> windows of whole events, and what stands around the events.

A window ends where an event ends. Raw line breaks cannot stand in JSON strings, and in them every quote is escaped, so
neither the line that closes an event nor ``}, {"`` can be met inside a string of a well-formed file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hotloop.core.errors import TraceError

from .byte_source import ByteSource

WINDOW_BYTES = 1 << 20
"""What is decoded at once. Measured over 0.25 .. 16 MiB: little difference up to 8, a quarter more CPU time at 16."""
MAX_EVENT_BYTES = 64 << 20
"""A longer stretch without the end of an event is no trace."""
MAX_HEADER_BYTES = 64 << 20

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb"\s*\[")
_FIRST_EVENT = re.compile(rb"\s*?\r?\n([ \t]*)\{")
_NEXT_EVENT = re.compile(rb"\s*\{")
_BOUNDARY = re.compile(rb'\}\s*,?\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp|tts|sf)"\s*:)')
_AFTER_ARRAY = re.compile(rb'\s*(?:\}|,\s*"|,?\s*$)')
_BOM = b"\xef\xbb\xbf"

_TOKEN = re.compile(
    rb'"(?:[^"\\]|\\.)*"|[-+]?(?:NaN|nan|Infinity|inf)\b|\b(?:N/A|None|undefined)\b|[\x00-\x08\x0b\x0c\x0e-\x1f]',
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")


class EventWindows:
    """Iterate for windows, each ``event,event,...`` without brackets, decoded or not by the caller.

    The caller says with ``end_events`` where in the last window the array ended; when it never does, the file was
    truncated. ``header_candidates`` then gives everything that is not an event.
    """

    def __init__(self, source: ByteSource, name: str, window_bytes: int = WINDOW_BYTES) -> None:
        self._source = source
        self._name = name
        self._window_bytes = window_bytes
        self._head = b""
        self._tail = b""
        self._is_list = False
        self._separator = b""
        self._carry = b""
        self.ended = False
        """True when the end of the array of events was seen."""

    def __iter__(self) -> Iterator[bytes]:
        buffer = self._find_events()
        while not self.ended:
            more = self._source.read(max(self._window_bytes - len(buffer), 1 << 16))
            if not more:
                if buffer.strip():
                    self._carry = b""
                    yield buffer
                return
            buffer = b"".join((buffer, more))
            if len(buffer) < self._window_bytes:
                continue
            cut = self._last_end(buffer)
            if cut <= 0:
                if len(buffer) > MAX_EVENT_BYTES:
                    raise TraceError(
                        f"{self._name} has {len(buffer) >> 20} MiB without the end of an event; it is not a trace, "
                        "or is damaged."
                    )
                continue
            self._carry = buffer[cut:]
            yield buffer[:cut]
            buffer = self._carry.lstrip(b", \t\r\n")

    def end_events(self, rest: bytes) -> None:
        """Tell that the array ended and that ``rest`` followed it in the window."""
        self.ended = True
        rest += self._carry
        parts = [rest]
        size = len(rest)
        while size < MAX_HEADER_BYTES and (more := self._source.read(1 << 20)):
            parts.append(more)
            size += len(more)
        self._tail = b"".join(parts)

    @property
    def header_candidates(self) -> Sequence[bytes]:
        """JSON texts of the file without its events, the most complete first."""
        if self._is_list:
            return ()
        head = self._head.rstrip().rstrip(b",")
        tail = self._tail.lstrip()
        before = tail.lstrip(b",") if head.rstrip().endswith(b"{") else tail
        return (head + before, head + b"}", b"{" + tail.lstrip(b", \r\n\t"))

    def _find_events(self) -> bytes:
        """The bytes after the bracket that opens the events."""
        buffer = self._source.read(1 << 20).removeprefix(_BOM)
        if not buffer.strip():
            raise TraceError(f"{self._name} is empty{self._because()}; record or copy it again.")
        first = buffer.lstrip()[:1]
        if first == b"[":
            self._is_list = True
            start = _LIST.match(buffer)
            assert start is not None
            return self._learn_separator(buffer[start.end() :])
        if first != b"{":
            raise TraceError(
                f"{self._name} is not a Chrome trace: it begins with {buffer.lstrip()[:20]!r}{self._because()}. "
                "hotloop reads what torch.profiler's export_chrome_trace writes, plain or gzip."
            )
        at = 0
        while (found := _ARRAY.search(buffer, at)) is None:
            at = max(len(buffer) - 4096, 0)
            more = self._source.read(1 << 20)
            if not more or len(buffer) > MAX_HEADER_BYTES:
                raise TraceError(
                    f'{self._name} has no "traceEvents"{self._because()}: it is not a Chrome trace, or it was cut off '
                    "before its first event."
                )
            buffer += more
        self._head = buffer[: found.start()]
        return self._learn_separator(buffer[found.end() :])

    def _because(self) -> str:
        return f" ({self._source.damage})" if self._source.damage else ""

    def _learn_separator(self, buffer: bytes) -> bytes:
        if len(buffer) < 4096:
            buffer += self._source.read(4096)
        first = _FIRST_EVENT.match(buffer)
        self._separator = b"\n" + first.group(1) + b"}," if first else b""
        return buffer

    def _last_end(self, buffer: bytes) -> int:
        """Offset after the last event that ends in the buffer and is followed by another; 0 if there is none."""
        if self._separator:
            at = len(buffer)
            for _ in range(64):
                at = buffer.rfind(self._separator, 0, at)
                if at < 0:
                    break
                end = at + len(self._separator)
                if _NEXT_EVENT.match(buffer, end) is not None:
                    return end - 1
        size = 1 << 16
        while True:
            begin = max(len(buffer) - size, 0)
            ends = [found.start() + 1 for found in _BOUNDARY.finditer(buffer, begin)]
            if ends or begin == 0:
                return ends[-1] if ends else 0
            size *= 16


def can_follow_events(rest: bytes) -> bool:
    """True when ``rest`` can stand behind the array of events: more fields, the end of the object, or nothing."""
    return _AFTER_ARRAY.match(rest[:4096]) is not None


def split_events(window: bytes) -> list[bytes]:
    """The window cut wherever an event seems to end; for windows that do not decode as a whole."""
    pieces: list[bytes] = []
    at = 0
    for found in _BOUNDARY.finditer(window):
        pieces.append(window[at : found.start() + 1])
        at = found.end()
    pieces.append(window[at:])
    return pieces


def sanitize(text: bytes) -> bytes:
    """The text with what JSON forbids made harmless: bad UTF-8, control characters, NaN, Infinity, N/A.

    >>> sanitize(b'{"a": NaN, "b": "NaN", "c": N/A}')
    b'{"a": null, "b": "NaN", "c": null}'
    """
    return _TOKEN.sub(_replace_token, text.decode("utf-8", "replace").encode())


def _replace_token(found: re.Match[bytes]) -> bytes:
    token = found.group()
    if token[:1] == b'"':
        return _CONTROL.sub(b" ", token)
    return b" " if len(token) == 1 and token[0] < 32 else b"null"
