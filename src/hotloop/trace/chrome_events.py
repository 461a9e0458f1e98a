"""A window of Chrome trace events -> Event values, keeping what can be kept of a damaged one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from .windows import can_follow_events, sanitize, split_events

ABSENT = Raw()
"""Empty text: the event does not have the field."""

DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding text that is not JSON of the wanted type raises."""

_MAX_STRAY_BRACKETS = 64
"""Of one window; what follows the last one is given up."""
_MAX_LAST_ENDS = 64


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


class _UntypedEvent(Struct, gc=False):
    ph: Raw = ABSENT
    cat: Raw = ABSENT
    name: Raw = ABSENT
    pid: Raw = ABSENT
    tid: Raw = ABSENT
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Raw = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedWindow:
    events: list[Event]
    rest: bytes | None = None
    """What followed the array of events; None when it did not end in this window."""
    lost_count: int = 0
    """Pieces that are no event, or damaged beyond repair."""
    is_salvaged: bool = False
    """True when the window was no valid JSON."""


_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_raws = msgspec.json.Decoder(list[Raw]).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_untyped = msgspec.json.Decoder(_UntypedEvent).decode
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


def decode_window(window: bytes) -> DecodedWindow:
    """The events of ``event,event,...``, with or without the end of the array behind them."""
    try:
        return DecodedWindow(events=_decode_events(in_brackets(window)))
    except DAMAGE as error:
        first_error = error
    return _decode_parts(window, first_error)


def in_brackets(text: bytes) -> bytes:
    """The text as a list. Joined: formatting a megabyte with % was measured to take 30 times as long."""
    return b"".join((b"[", text, b"]"))


def _decode_parts(window: bytes, error: Exception) -> DecodedWindow:
    """As decode_window, for a window that ends the array, holds wrong types, or is damaged."""
    events: list[Event] = []
    lost_count, is_salvaged = 0, False
    for _ in range(_MAX_STRAY_BRACKETS):
        text = in_brackets(window)
        if isinstance(error, msgspec.ValidationError):
            # Only where the syntax is right; a syntax error behind a wrong type is found here too.
            try:
                kept = _decode_each(_decode_raws(text))
                return DecodedWindow(
                    events=events + kept.events, lost_count=lost_count + kept.lost_count, is_salvaged=is_salvaged
                )
            except DAMAGE as syntax_error:
                error = syntax_error
        end = _end_of_array(error, text)
        if end is None:
            break
        kept = _decode_whole(text[:end])
        events += kept.events
        lost_count += kept.lost_count
        # The text has one bracket before the window and one behind it.
        rest = text[end:-1] if end < len(text) else b""
        if can_follow_events(rest):
            return DecodedWindow(events=events, rest=rest, lost_count=lost_count, is_salvaged=is_salvaged)
        is_salvaged = True
        window = rest.lstrip(b", \t\r\n")
        try:
            events += _decode_events(in_brackets(window))
            return DecodedWindow(events=events, lost_count=lost_count, is_salvaged=True)
        except DAMAGE as next_error:
            error = next_error
    salvaged = _salvage(window)
    return DecodedWindow(
        events=events + salvaged.events,
        rest=salvaged.rest,
        lost_count=lost_count + salvaged.lost_count,
        is_salvaged=True,
    )


def _end_of_array(error: Exception, text: bytes) -> int | None:
    """Offset behind the bracket that closed the array, when that is what the error says."""
    found = _TRAILING.search(str(error))
    if found is None:
        return None
    # msgspec counts the first byte that should not be there.
    return text.rfind(b"]", 0, int(found.group(1)) - 1) + 1


def _decode_whole(text: bytes) -> DecodedWindow:
    """Of a list that is valid JSON."""
    try:
        return DecodedWindow(events=_decode_events(text))
    except DAMAGE:
        pass_by_one = _decode_raws(text)
    return _decode_each(pass_by_one)


def _decode_each(raws: list[Raw]) -> DecodedWindow:
    events = [decode_event(raw) for raw in raws]
    kept = [event for event in events if event is not None]
    return DecodedWindow(events=kept, lost_count=len(events) - len(kept))


def decode_event(text: Raw | bytes) -> Event | None:
    """One event; a field of a wrong type becomes absent. None when the text is no event."""
    try:
        return _decode_event(text)
    except DAMAGE:
        pass_by_field = text
    try:
        raw = _decode_untyped(pass_by_field)
    except DAMAGE:
        return None
    return Event(
        ph=_text(raw.ph),
        cat=_text(raw.cat),
        name=_text(raw.name),
        pid=_label(raw.pid),
        tid=_label(raw.tid),
        ts=raw.ts,
        dur=raw.dur,
        args=raw.args,
    )


def _text(raw: Raw) -> str:
    try:
        value = msgspec.json.decode(raw) if len(bytes(raw)) else ""
    except DAMAGE:
        value = None
    return value if isinstance(value, str) else bytes(raw).decode("utf-8", "replace")


def _label(raw: Raw) -> int | str | None:
    try:
        value: Any = msgspec.json.decode(raw) if len(bytes(raw)) else None
    except DAMAGE:
        value = None
    return value if isinstance(value, (int, str)) else None


def _salvage(window: bytes) -> DecodedWindow:
    """Event by event. The array's end is taken for real only where what follows it says so."""
    pieces = split_events(sanitize(window))
    events: list[Event] = []
    lost_count = 0
    pieces[-1:] = _cut_last(pieces[-1])
    for at, piece in enumerate(pieces):
        event = decode_event(piece)
        if event is not None:
            events.append(event)
            continue
        text = in_brackets(piece)
        try:
            # Several events that stood too close together to be told apart.
            several = _decode_whole(text)
        except DAMAGE as error:
            end = _end_of_array(error, text)
            if end is None:
                lost_count += bool(piece.strip(b", \t\r\n"))
                continue
            several = _decode_whole(text[:end])
            rest = text[end:-1] if end < len(text) else b""
            if can_follow_events(rest):
                return DecodedWindow(
                    events=events + several.events,
                    rest=b",".join([rest, *pieces[at + 1 :]]),
                    lost_count=lost_count + several.lost_count,
                    is_salvaged=True,
                )
            lost_count += bool(rest.strip(b"] \t\r\n,"))
        events += several.events
        lost_count += several.lost_count
    return DecodedWindow(events=events, lost_count=lost_count, is_salvaged=True)


def _cut_last(piece: bytes) -> list[bytes]:
    """The last piece of a file that was cut off: the event, when it is whole, and what was begun after it."""
    end = len(piece)
    for _ in range(_MAX_LAST_ENDS):
        end = piece.rfind(b"}", 0, end)
        if end < 0:
            break
        rest = piece[end + 1 :]
        if decode_event(piece[: end + 1]) is not None:
            return [piece] if rest.lstrip().startswith(b"]") else [piece[: end + 1], rest]
    return [piece]
