"""The bytes of a Chrome trace -> lists of Event values, window by window, and the fields around the events.

A window ends where an event ends. Damage in a window costs only the events that it hits, and is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from hotloop.core.errors import TraceError

from .byte_source import ByteSource

WINDOW_BYTES = 1 << 20
"""The size of a window. Measured over 0.25 .. 16 MiB: little difference up to 8, a quarter more CPU time at 16."""
MAX_EVENT_BYTES = 64 << 20
"""A longer stretch without the end of an event is not a trace."""
MAX_HEADER_BYTES = 64 << 20
_MAX_CUTS = 8
"""How many ends of events are tried: in a list of objects inside an event, there may be false ones."""

ABSENT = Raw()
"""Empty text: the event does not have the field."""

DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors from decoding text that is not JSON of the wanted type."""

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp|tts|sf)"\s*:'
_BOUNDARY = re.compile(rb"\}\s*,?\s*(?=\{\s*(?:" + _KEYS + rb'|"?\w*"?\s*\Z))')
"""Between two events; the second one may have been cut off in its first key."""
_AFTER_ARRAY = re.compile(rb'\s*(?:\}|,\s*"|,?\s*$)')
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(
    rb'"(?:[^"\\]|\\.)*"|[-+]?(?:NaN|nan|Infinity|inf)\b|\b(?:N/A|None|undefined)\b|[\x00-\x08\x0b\x0c\x0e-\x1f]',
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class Event(Struct, gc=False):
    """One event. Times and args stay text: times to be parsed exactly, args to be decoded by kind."""

    ph: str | None = ""
    cat: str | None = ""
    name: str | int | float | bool | None = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Raw = ABSENT


_decode_events = msgspec.json.Decoder(list[Event]).decode


class ChromeEvents:
    """Iterate for lists of events; then the rest is known.

    If the end of the array is never seen, the file was truncated.
    """

    def __init__(self, source: ByteSource, name: str, window_bytes: int = WINDOW_BYTES) -> None:
        self._source = source
        self._name = name
        self._window_bytes = window_bytes
        self._head: bytes | None = None
        self._tail = b""
        self.has_ended = False
        """True when the end of the array of events was seen."""
        self.lost_count = 0
        """Pieces that are not events, or damaged beyond repair."""
        self.salvaged_windows = 0
        """Windows that were not valid JSON of events."""

    def __iter__(self) -> Iterator[list[Event]]:
        buffer, rest = self._find_events(), b""
        while not self.has_ended:
            more = self._source.read(max(self._window_bytes - len(buffer), len(buffer), 1 << 16))
            buffer = b"".join((buffer, more))
            if not more:
                yield self._decode(buffer)
                return
            if len(buffer) < self._window_bytes:
                continue
            cuts = self._find_ends(buffer)
            if not cuts:
                if len(buffer) > MAX_EVENT_BYTES:
                    raise TraceError(
                        f"{self._name} has {len(buffer) >> 20} MiB without the end of an event; it is not a trace, "
                        "or is damaged."
                    )
                continue
            for cut in cuts:
                try:
                    events = _decode_events(in_brackets(buffer[:cut]))
                    break
                except DAMAGE:
                    continue
            else:
                cut = cuts[0]
                events = self._decode(buffer[:cut])
            yield events
            rest = buffer[cut:]
            buffer = rest.lstrip(b", \t\r\n")
        self._tail += rest
        while len(self._tail) < MAX_HEADER_BYTES and (more := self._source.read(1 << 20)):
            self._tail += more

    def read_header(self) -> dict[str, Any] | None:
        """The other fields of the file, empty for a bare list; None if they cannot be read."""
        if self._head is None:
            return {}
        head = self._head.rstrip().rstrip(b",")
        tail = self._tail.lstrip().lstrip(b"," if head.endswith(b"{") else b"")
        for text in (head + tail, head + b"}"):
            try:
                header = msgspec.json.decode(sanitize(text))
            except DAMAGE:
                continue
            if isinstance(header, dict):
                return header
        return None

    def _find_events(self) -> bytes:
        """The bytes after the bracket that opens the events."""
        buffer = self._source.read(1 << 20).removeprefix(_BOM).lstrip()
        if not buffer:
            raise TraceError(f"{self._name} is empty{self._because()}; record or copy it again.")
        if buffer.startswith(b"["):
            return buffer[1:]
        if not buffer.startswith(b"{"):
            raise TraceError(
                f"{self._name} is not a Chrome trace: it begins with {buffer[:20]!r}{self._because()}. "
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
        return buffer[found.end() :]

    def _because(self) -> str:
        return f" ({self._source.damage})" if self._source.damage else ""

    def _find_ends(self, buffer: bytes) -> list[int]:
        """Offsets after the last events that end in the buffer and are followed by another, the last one first."""
        size = 1 << 16
        while True:
            begin = max(len(buffer) - size, 0)
            ends = [found.start() + 1 for found in _BOUNDARY.finditer(buffer, begin)]
            if ends or begin == 0:
                return ends[-1 : -1 - _MAX_CUTS : -1]
            size *= 16

    def _decode(self, window: bytes) -> list[Event]:
        """The events of ``event,event,...``, with or without the end of the array after them."""
        events = self._decode_whole(window)
        if events is None:
            self.salvaged_windows += 1
            window = sanitize(window)
            events = self._decode_whole(window)
        return self._decode_pieces(window) if events is None else events

    def _decode_whole(self, window: bytes) -> list[Event] | None:
        """None if the window is not valid."""
        text = in_brackets(window.strip(b", \t\r\n"))
        try:
            return _decode_events(text)
        except DAMAGE as error:
            end = _find_end_of_array(error, text)
        return _decode_events(text[:end]) if end is not None and self._end_array(text[end:-1]) else None

    def _end_array(self, rest: bytes) -> bool:
        """Whether the array has really ended: ``rest`` is more fields, the end of the object, or nothing."""
        self.has_ended = _AFTER_ARRAY.match(rest[:4096]) is not None
        if self.has_ended:
            self._tail = rest
        return self.has_ended

    def _decode_pieces(self, window: bytes) -> list[Event]:
        """Event by event, wherever one seems to end."""
        events: list[Event] = []
        ends = [found.start() + 1 for found in _BOUNDARY.finditer(window)]
        for begin, end in zip([0, *ends], [*ends, len(window)], strict=True):
            if self.has_ended:
                self._tail += window[begin:end]
                continue
            found = self._decode_whole(window[begin:end])
            if found is None:
                self.lost_count += 1
            else:
                events += found
        return events


def _find_end_of_array(error: Exception, text: bytes) -> int | None:
    """Offset after the bracket that closed the array, if the error is about that."""
    found = _TRAILING.search(str(error))
    # msgspec counts the first byte that should not be there.
    return None if found is None else text.rfind(b"]", 0, int(found[1]) - 1) + 1


def in_brackets(text: bytes) -> bytes:
    """The text as a list. Joined: formatting a megabyte with % was measured to take 30 times as long."""
    return b"".join((b"[", text, b"]"))


def sanitize(text: bytes) -> bytes:
    """The text with everything that JSON forbids made harmless: bad UTF-8, control characters, NaN, Infinity, N/A.

    >>> sanitize(b'{"a": NaN, "b": "NaN", "c": N/A}')
    b'{"a": null, "b": "NaN", "c": null}'
    """
    return _TOKEN.sub(_replace_token, text.decode("utf-8", "replace").encode())


def _replace_token(found: re.Match[bytes]) -> bytes:
    token = found.group()
    if token[:1] == b'"':
        return _CONTROL.sub(b" ", token)
    return b" " if len(token) == 1 and token[0] < 32 else b"null"
