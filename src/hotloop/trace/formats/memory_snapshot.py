"""A memory snapshot or a raw memory timeline of PyTorch -> MemorySnapshot or MemoryTimeline; no code can run.

A snapshot is a pickle; hotloop.trace.plain_pickle reads it, with bounds on size, memory, time and nesting.
"""

from __future__ import annotations

import gzip
import io
import json
import mmap
import os
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.errors import RecordingError
from hotloop.core.findings import Where
from hotloop.core.memory_categories import UNKNOWN, Allocation, Origin, categorize_allocations
from hotloop.core.memory_snapshot import (
    ACTIVE_ALLOCATED,
    ACTIVE_AWAITING_FREE,
    BLOCK_STATES,
    INACTIVE,
    TIMELINE_ACTIONS,
    TIMELINE_CATEGORIES,
    BlockTotals,
    DeviceMemory,
    MemoryBlock,
    MemoryPeak,
    MemorySegment,
    MemorySnapshot,
    MemoryTimeline,
    OutOfMemory,
    SiteMemory,
)
from hotloop.core.trace import TraceNote
from hotloop.trace.memory_origins import UNTOLD, StackOrigin, classify_origin
from hotloop.trace.plain_pickle import PickleLimits, load_plain

SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
TIMELINE_SUFFIXES = (".raw.json.gz", ".raw.gz", ".raw.json")

_LARGEST_BLOCKS = 50
_LONGEST_NAME = 2000
_MAX_SETTINGS = 200
_MAX_DEVICES = 1024
_NS_PER_US = 1000
_MIN_UNIX_NS = 10**17
"""A Unix time above this is in ns: it is 1973 in ns and the year 5138 in us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits(PickleLimits):
    """What a file may cost to read. The defaults fit every snapshot that fits the memory of a laptop."""

    file_bytes: int = 2 << 30
    unpacked_bytes: int = 2 << 30
    """Of a compressed timeline."""
    visits: int = 200_000_000
    """Segments, blocks, events and frames that are looked at. Shared objects cost the file almost nothing."""


DEFAULT_LIMITS = SnapshotLimits()


def read_memory_snapshot(path: Path, limits: SnapshotLimits = DEFAULT_LIMITS) -> MemorySnapshot:
    """The snapshot in a pickle written by torch.cuda.memory._dump_snapshot().

    Raises RecordingError, in one line, when the file is no such pickle, is damaged, is over a limit, or holds an
    instruction to run code.
    """
    return summarize_snapshot(read_plain_pickle(path, limits), source=path.name, limits=limits)


def read_plain_pickle(path: Path, limits: SnapshotLimits = DEFAULT_LIMITS) -> object:
    """The value of a pickle that holds plain containers only; nothing in the file is ever executed."""
    size_bytes = _checked_size_bytes(path, limits)
    if size_bytes == 0:
        raise RecordingError(f"{path} is empty, not a memory snapshot.")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return load_plain(data, str(path), limits)
    except (OSError, ValueError) as error:
        raise RecordingError(f"{path} cannot be read: {error}.") from error


def read_memory_timeline(path: Path, limits: SnapshotLimits = DEFAULT_LIMITS) -> MemoryTimeline:
    """The raw memory timeline in a (gzipped) JSON file of torch.profiler's export_memory_timeline()."""
    text = _read_text(path, limits)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordingError(
            f"{path} is not a raw memory timeline: {_first_line(error)}. Export it with "
            'export_memory_timeline("NAME.raw.json.gz").'
        ) from error
    return _timeline(rows, path)


# From plain values to a snapshot


class _Visits:
    """Counts what is looked at: a list may hold one shared object a million times at no cost to the file."""

    __slots__ = ("left",)

    def __init__(self, limit: int) -> None:
        self.left = limit

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise RecordingError(
                "The memory snapshot was not read: it describes more blocks and events than a real one can have."
            )


_StackKey = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    device: int
    address: int
    bytes: int
    requested_bytes: int | None
    state: str
    where: Where | None
    stack: StackOrigin
    stack_key: _StackKey


def summarize_snapshot(value: object, *, source: str, limits: SnapshotLimits = DEFAULT_LIMITS) -> MemorySnapshot:
    """The snapshot that a dict as torch.cuda.memory._snapshot() returns it describes (or a plain list of segments)."""
    if isinstance(value, list):  # torch.cuda.memory_snapshot(), pickled by hand
        raw_segments, traces, raw_settings = value, [], {}
    elif isinstance(value, dict) and isinstance(value.get("segments"), list):
        raw_segments = value["segments"]
        traces = _list(value.get("device_traces"))
        raw_settings = _dict(value.get("allocator_settings"))
    else:
        raise RecordingError(
            f"{source} is a pickle, but not a memory snapshot: it has no list of segments. Record one with "
            "torch.cuda.memory._dump_snapshot(NAME)."
        )
    visits = _Visits(limits.visits)
    sites = _Sites(visits)
    dropped: Counter[str] = Counter()
    segments: list[MemorySegment] = []
    blocks: list[_Block] = []
    for raw in raw_segments:
        visits.spend(1)
        segment, of_segment = _read_segment(raw, visits, sites, dropped)
        if segment is not None:
            segments.append(segment)
            blocks.extend(of_segment)
    if raw_segments and not segments:
        raise RecordingError(f"{source} is a pickle, but not a memory snapshot: no segment of it can be read.")
    events = _read_events(traces, visits, dropped)
    notes: list[TraceNote] = []
    devices: list[DeviceMemory] = []
    failures: list[OutOfMemory] = []
    for device in sorted({segment.device for segment in segments} | {d for d, found in events.items() if found}):
        summary, failed = _read_device(
            device,
            [segment for segment in segments if segment.device == device],
            [block for block in blocks if block.device == device],
            events.get(device, []),
            sites,
            notes,
        )
        devices.append(summary)
        failures.extend(failed)
    _note_gaps(events, dropped, notes)
    active = [block for block in blocks if block.state != INACTIVE]
    active.sort(key=lambda block: (-block.bytes, block.device, block.address))
    return MemorySnapshot(
        source=source,
        devices=tuple(devices),
        segments=tuple(segments),
        largest_blocks=tuple(
            MemoryBlock(
                device=block.device,
                address=block.address,
                bytes=block.bytes,
                requested_bytes=block.requested_bytes,
                state=block.state,
                where=block.where,
            )
            for block in active[:_LARGEST_BLOCKS]
        ),
        out_of_memory=tuple(failures),
        settings={
            key: item
            for key, item in islice(raw_settings.items(), _MAX_SETTINGS)
            if isinstance(item, bool | int | float | str)
        },
        notes=tuple(notes),
    )


def _read_events(traces: list[Any], visits: _Visits, dropped: Counter[str]) -> dict[int, list[dict[str, Any]]]:
    """The recorded events of each device, in their order."""
    events: dict[int, list[dict[str, Any]]] = {}
    for device, raw_events in enumerate(traces[:_MAX_DEVICES]):
        of_device = _list(raw_events)
        visits.spend(len(of_device))
        events[device] = [event for event in of_device if isinstance(event, dict)]
        dropped["event"] += len(of_device) - len(events[device])
    return events


def _note_gaps(events: dict[int, list[dict[str, Any]]], dropped: Counter[str], notes: list[TraceNote]) -> None:
    """Say that there is no history, and what could not be read."""
    if not any(events.values()):
        notes.append(
            TraceNote(
                level="info",
                code="no-memory-history",
                message="The snapshot has no recorded events, so there is no peak and no history. Call "
                "torch.cuda.memory._record_memory_history() before the code to analyse.",
            )
        )
    for kind, count in sorted(dropped.items()):
        if count:
            notes.append(
                TraceNote(
                    level="warning",
                    code=f"unreadable-{kind}",
                    message=f"{count} {kind} records of the snapshot lack required fields and were left out.",
                    count=count,
                )
            )


def _read_segment(
    raw: object, visits: _Visits, sites: _Sites, dropped: Counter[str]
) -> tuple[MemorySegment | None, list[_Block]]:
    """The segment and its blocks. Sizes are summed from the blocks: they are the finer statement of the two."""
    values = _dict(raw)
    address, reserved_bytes = _size(values.get("address")), _size(values.get("total_size"))
    device = _size(values.get("device", 0))
    if address is None or reserved_bytes is None or device is None or device >= _MAX_DEVICES:
        dropped["segment"] += 1
        return None, []
    raw_blocks = _list(values.get("blocks"))
    visits.spend(len(raw_blocks))
    blocks: list[_Block] = []
    at = address
    for raw_block in raw_blocks:
        fields = _dict(raw_block)
        size_bytes, state = _size(fields.get("size")), fields.get("state")
        if size_bytes is None or not isinstance(state, str):
            dropped["block"] += 1
            continue
        block_address = _size(fields.get("address"))
        if block_address is None:  # old snapshots give only the sizes, in order
            block_address = at
        at = block_address + size_bytes
        blocks.append(_read_block(fields, device, block_address, size_bytes, state[:64], sites))
    held_bytes = sum(block.bytes for block in blocks)
    if held_bytes > reserved_bytes:
        dropped["segment"] += 1
        return None, []
    segment = MemorySegment(
        device=device,
        address=address,
        stream=_size(values.get("stream")) or 0,
        kind=str(values.get("segment_type", ""))[:64],
        pool=_pair(values.get("segment_pool_id")),
        expandable=values.get("is_expandable") is True,
        reserved_bytes=reserved_bytes,
        allocated_bytes=sum(block.bytes for block in blocks if block.state == ACTIVE_ALLOCATED),
        active_bytes=sum(block.bytes for block in blocks if block.state != INACTIVE),
        block_count=len(blocks),
    )
    return segment, blocks


def _read_block(
    fields: dict[str, Any], device: int, address: int, size_bytes: int, state: str, sites: _Sites
) -> _Block:
    if state == "active_pending_free":  # its name until torch 2.1
        state = ACTIVE_AWAITING_FREE
    requested_bytes = _size(fields.get("requested_size"))
    frames = fields.get("frames")
    history = _list(fields.get("history"))
    if "frames" not in fields and history:  # torch 1.13 and 2.0: a list of past uses, newest first
        newest = _dict(history[0])
        frames = newest.get("frames")
        requested_bytes = _size(newest.get("real_size")) if requested_bytes is None else requested_bytes
    active = state != INACTIVE
    stack, key = sites.find_origin(frames) if active else (UNTOLD, b"")
    return _Block(
        device=device,
        address=address,
        bytes=size_bytes,
        requested_bytes=requested_bytes if active else None,
        state=state,
        where=sites.find(frames) if active else None,
        stack=stack,
        stack_key=key,
    )


def _read_device(
    device: int,
    segments: list[MemorySegment],
    blocks: list[_Block],
    events: list[dict[str, Any]],
    sites: _Sites,
    notes: list[TraceNote],
) -> tuple[DeviceMemory, list[OutOfMemory]]:
    active = [block for block in blocks if block.state != INACTIVE]
    reserved_bytes = sum(segment.reserved_bytes for segment in segments)
    requested = [block.requested_bytes for block in active]
    requested_bytes = None if None in requested else sum(size for size in requested if size is not None)
    peak, failures = _walk_events(device, events, active, requested_bytes, reserved_bytes, sites, notes)
    summary = DeviceMemory(
        device=device,
        segment_count=len(segments),
        reserved_bytes=reserved_bytes,
        allocated_bytes=sum(segment.allocated_bytes for segment in segments),
        active_bytes=sum(segment.active_bytes for segment in segments),
        requested_bytes=requested_bytes,
        free_segment_bytes=sum(segment.reserved_bytes for segment in segments if segment.active_bytes == 0),
        split_bytes=sum(
            segment.reserved_bytes - segment.active_bytes for segment in segments if segment.active_bytes > 0
        ),
        largest_free_block_bytes=max((block.bytes for block in blocks if block.state == INACTIVE), default=0),
        blocks=_totals(blocks),
        sites=_by_site((block.where, block.bytes, 1) for block in active),
        events=dict(sorted(Counter(str(event.get("action"))[:64] for event in events).items())),
        peak=peak,
    )
    return summary, failures


def _totals(blocks: list[_Block]) -> tuple[BlockTotals, ...]:
    by_state: dict[str, list[_Block]] = defaultdict(list)
    for block in blocks:
        by_state[block.state].append(block)
    order = [state for state in BLOCK_STATES if state in by_state]
    order += sorted(by_state.keys() - set(BLOCK_STATES))
    totals = []
    for state in order:
        requested = [block.requested_bytes for block in by_state[state]]
        totals.append(
            BlockTotals(
                state=state,
                count=len(by_state[state]),
                bytes=sum(block.bytes for block in by_state[state]),
                requested_bytes=None if None in requested else sum(size for size in requested if size is not None),
            )
        )
    return tuple(totals)


def _by_site(parts: Iterable[tuple[Where | None, int, int | None]]) -> tuple[SiteMemory, ...]:
    size_bytes: Counter[Where | None] = Counter()
    counts: dict[Where | None, int | None] = {}
    for where, part_bytes, count in parts:
        size_bytes[where] += part_bytes
        known = counts.get(where, 0)
        counts[where] = None if known is None or count is None else known + count
    ordered = sorted(size_bytes.items(), key=lambda item: (-item[1], item[0] is None, str(item[0])))
    return tuple(SiteMemory(where=where, bytes=total, count=counts[where]) for where, total in ordered)


_IN_USE = {"alloc": 1, "free_completed": -1}
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def _walk_events(
    device: int,
    events: list[dict[str, Any]],
    active: list[_Block],
    requested_bytes: int | None,
    reserved_bytes: int,
    sites: _Sites,
    notes: list[TraceNote],
) -> tuple[MemoryPeak | None, list[OutOfMemory]]:
    """The highest level and the failures, walking back from the state that the snapshot holds.

    The events are the newest ones of a ring, so their beginning is arbitrary and only the end is known.
    """
    actions = [event.get("action") for event in events]
    sizes = np.array([_size(event.get("size")) or 0 for event in events], dtype=np.int64)
    in_use = np.array([_IN_USE.get(_text(action), 0) for action in actions], dtype=np.int64) * sizes
    reserved = np.array([_RESERVED.get(_text(action), 0) for action in actions], dtype=np.int64) * sizes
    consistent = requested_bytes is not None and bool(events)
    # level[i] is the level before event i; level[-1] is the snapshot's own state.
    in_use_levels = (requested_bytes or 0) - np.append(np.cumsum(in_use[::-1])[::-1], 0)
    reserved_levels = reserved_bytes - np.append(np.cumsum(reserved[::-1])[::-1], 0)
    if consistent and (int(in_use_levels.min()) < 0 or int(reserved_levels.min()) < 0):
        consistent = False
        notes.append(
            TraceNote(
                level="warning",
                code="memory-history-contradicts",
                message=f"The events of device {device} free more than its state at the end allows, so its peak is "
                "unknown. Recording was probably paused in between.",
            )
        )
    peak = _peak(events, actions, in_use_levels, reserved_levels, active, sites, device, notes) if consistent else None
    failures = [
        OutOfMemory(
            device=device,
            event=index,
            unix_ns=_unix_ns(events[index]),
            failed_bytes=int(sizes[index]),
            device_free_bytes=_size(events[index].get("device_free")),
            requested_bytes=int(in_use_levels[index]) if consistent else None,
            reserved_bytes=int(reserved_levels[index]) if consistent else None,
            where=sites.find(events[index].get("frames")),
        )
        for index, action in enumerate(actions)
        if action == "oom"
    ]
    return peak, failures


def _peak(
    events: list[dict[str, Any]],
    actions: list[Any],
    in_use_levels: np.ndarray[Any, np.dtype[np.int64]],
    reserved_levels: np.ndarray[Any, np.dtype[np.int64]],
    active: list[_Block],
    sites: _Sites,
    device: int,
    notes: list[TraceNote],
) -> MemoryPeak:
    top = int(np.argmax(in_use_levels))  # the level before event `top`, which is the one after event `top - 1`
    found = _list_allocations(events, actions, active, sites)
    category = categorize_allocations([one.allocation for one in found])
    parts: list[tuple[Where | None, int, int | None]] = []
    by_category: Counter[str] = Counter()
    for one, named in zip(found, category, strict=True):
        if one.allocation.made < top and (one.completed is None or one.completed >= top):
            parts.append((one.where(events, sites), one.bytes, 1))
            by_category[named] += one.bytes
    total_bytes = int(in_use_levels[top])
    rest_bytes = total_bytes - sum(part_bytes for _, part_bytes, _ in parts)
    older_bytes = rest_bytes + sum(one.bytes for one in found if one.allocation.made < 0 and one.allocation.site == b"")
    if older_bytes * 10 > total_bytes and rest_bytes >= 0:
        notes.append(
            TraceNote(
                level="info",
                code="memory-older",
                message=f"device {device}: {older_bytes >> 20:,} MiB of the peak were allocated before recording "
                "began, so their origin is unknown. Start recording before the model is built.",
            )
        )
    if rest_bytes < 0:  # an address was used twice without a free in between: no line can be trusted
        parts, rest_bytes = [], total_bytes
        by_category.clear()
    if rest_bytes > 0:  # allocated before the first event and freed after the peak: nobody recorded by whom
        parts.append((None, rest_bytes, None))
        by_category[UNKNOWN] += rest_bytes
    _note_unknown_origins(found, device, notes)
    return MemoryPeak(
        requested_bytes=total_bytes,
        reserved_bytes=int(reserved_levels[top]),
        event=top - 1,
        unix_ns=_unix_ns(events[top - 1]) if top > 0 else None,
        by_site=_by_site(parts),
        by_category={name: by_category[name] for name in TIMELINE_CATEGORIES if by_category[name]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allocation:
    """An allocation of the history, or a block that is older than it."""

    allocation: Allocation
    bytes: int
    completed: int | None
    """The event with which its memory became free; None when it was in use at the end."""
    block: _Block | None
    has_native: bool

    def where(self, events: list[dict[str, Any]], sites: _Sites) -> Where | None:
        return sites.find(events[self.allocation.made].get("frames")) if self.block is None else self.block.where


def _list_allocations(
    events: list[dict[str, Any]], actions: list[Any], active: list[_Block], sites: _Sites
) -> list[_Allocation]:
    """What was in use at some time, the oldest first."""
    allocated_here = {
        _size(event.get("addr")) for event, action in zip(events, actions, strict=True) if action == "alloc"
    }
    found = [
        _Allocation(
            allocation=Allocation(
                origin=block.stack.origin,
                made=-1,
                freed=None,
                freed_by=Origin.UNTOLD,
                site=block.stack_key,
                is_nested=block.stack.is_nested,
            ),
            bytes=block.requested_bytes or 0,
            completed=None,
            block=block,
            has_native=block.stack.has_native,
        )
        # What the snapshot still holds and the events never allocated was there all the time.
        for block in active
        if block.address not in allocated_here
    ]
    live: dict[int, int] = {}
    requested: dict[int, int] = {}
    ends: dict[int, tuple[int | None, int]] = {}
    for index, (event, action) in enumerate(zip(events, actions, strict=True)):
        address = _size(event.get("addr"))
        if address is None:
            continue
        if action == "alloc":
            if address in live:  # the free in between was not recorded
                ends[live[address]] = (None, index)
            live[address] = index
            requested.pop(address, None)
        elif action == "free_requested":
            requested[address] = index
        elif action == "free_completed" and address in live:
            ends[live.pop(address)] = (requested.pop(address, index), index)
    for address, index in requested.items():  # given back by the program, but another stream still needs it
        if address in live:
            ends[live.pop(address)] = (index, len(events))
    mine = [i for i, action in enumerate(actions) if action == "alloc" and _size(events[i].get("addr")) is not None]
    silent = _classify_silence([sites.find_origin(events[index].get("frames"))[0] for index in mine])
    for index in mine:
        stack, key = sites.find_origin(events[index].get("frames"))
        stack = stack if key else silent
        asked, completed = ends.get(index, (None, None))
        by = UNTOLD
        if asked is not None:
            by, by_key = sites.find_origin(events[asked].get("frames"))
            # Without stacks of frees torch writes that of the allocation.
            by = UNTOLD if by_key == key else by if by_key else silent
        found.append(
            _Allocation(
                allocation=Allocation(
                    origin=stack.origin,
                    made=index,
                    freed=completed if asked is None else asked,
                    freed_by=by.origin,
                    site=key,
                    is_nested=stack.is_nested,
                ),
                bytes=_size(events[index].get("size")) or 0,
                completed=completed,
                block=None,
                has_native=stack.has_native,
            )
        )
    last = actions[mine[-1] :] if mine else []
    if "oom" not in last:
        # The program itself wrote the snapshot: whatever made the last allocation, backward or optimizer, was over.
        end = Allocation(
            origin=Origin.ELSEWHERE, made=len(events), freed=None, freed_by=Origin.UNTOLD, site=_END_OF_RECORDING
        )
        found.append(_Allocation(allocation=end, bytes=0, completed=None, block=None, has_native=False))
    return found


_END_OF_RECORDING = b"end"


def _classify_silence(stacks: list[StackOrigin]) -> StackOrigin:
    """What an allocation without a stack is. Where only Python frames were recorded and the forward has some, it is
    the backward: autograd works for a device in a thread of its own, which has none."""
    python_only = not any(stack.has_native for stack in stacks)
    if python_only and any(stack.origin is Origin.FORWARD for stack in stacks):
        return StackOrigin(origin=Origin.BACKWARD, is_nested=False, has_native=False)
    return UNTOLD


def _note_unknown_origins(found: list[_Allocation], device: int, notes: list[TraceNote]) -> None:
    """Says on what the categories rest, where that is less than whole stacks."""
    allocation = [
        one for one in found if one.allocation.origin is not Origin.UNTOLD and one.allocation.site != _END_OF_RECORDING
    ]
    if not allocation:
        message = "its allocations have no stacks, so their categories are unknown"
    elif not any(one.has_native for one in allocation) and any(one.allocation.site == b"" for one in allocation):
        message = "its stacks have only Python frames; allocations without frames are counted as backward"
    else:
        return
    notes.append(
        TraceNote(
            level="info",
            code="memory-stacks-missing",
            message=f"device {device}: {message}. To record whole stacks: "
            'torch.cuda.memory._record_memory_history(context="all", stacks="all").',
        )
    )


_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|/lib/python3\.\d+/|/torchinductor_|^<(?!ipython|stdin)"
    r"|/torch/(?:_\w+|amp|autograd|cuda|distributed|fx|nn|optim|profiler|utils)/"
)
"""Files that are not the user's: libraries, what the compiler generated, and a torch that was built from source."""


class _Sites:
    """Innermost lines of the user's code, and what made the allocation, by stack; equal stacks cost one search."""

    __slots__ = ("_by_list", "_by_stack", "_keep", "_lines", "_visits")

    def __init__(self, visits: _Visits) -> None:
        self._visits = visits
        self._lines: dict[tuple[str, object, str], tuple[bool, Where | None]] = {}
        self._by_stack: dict[bytes, tuple[Where | None, StackOrigin]] = {}
        self._by_list: dict[int, bytes] = {}
        self._keep: list[list[Any]] = []  # ids are only unique while their objects live

    def find(self, frames: object) -> Where | None:
        """The innermost frame in the user's code, else the innermost Python frame, else None."""
        return self._look(frames)[0]

    def find_origin(self, frames: object) -> tuple[StackOrigin, bytes]:
        """What the stack says of the allocation, and a key that equal stacks share."""
        _, origin, key = self._look(frames)
        return origin, key

    def _look(self, frames: object) -> tuple[Where | None, StackOrigin, bytes]:
        if not isinstance(frames, list) or not frames:
            return None, UNTOLD, b""
        key = self._by_list.get(id(frames))
        if key is None:
            self._visits.spend(len(frames))
            key = array("Q", map(id, frames)).tobytes()
            if key not in self._by_stack:
                self._by_stack[key] = (self._search(frames), _classify_stack(frames))
            self._by_list[id(frames)] = key
            self._keep.append(frames)
        where, origin = self._by_stack[key]
        return where, origin, key

    def _search(self, frames: list[Any]) -> Where | None:
        fallback: Where | None = None
        for frame in frames:
            users, where = self._line(_dict(frame))
            if users:
                return where
            if fallback is None:
                fallback = where
        return fallback

    def _line(self, frame: dict[str, Any]) -> tuple[bool, Where | None]:
        file, line, function = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(file, str) or not isinstance(line, int) or not isinstance(function, str):
            return False, None
        key = (file, line, function)
        if key not in self._lines:
            plain = file.replace("\\", "/")
            is_python = plain.endswith(".py") or plain.startswith("<ipython") or "ipykernel_" in plain
            where = Where(file=file, line=line, function=function) if is_python else None
            self._lines[key] = (is_python and _LIBRARY.search(plain) is None, where)
        return self._lines[key]


def _classify_stack(frames: list[Any]) -> StackOrigin:
    plain = []
    for frame in frames:
        values = _dict(frame)
        file, function = values.get("filename"), values.get("name")
        if isinstance(file, str) and isinstance(function, str):
            plain.append((file[:_LONGEST_NAME].replace("\\", "/"), function[:_LONGEST_NAME]))
    return classify_origin(plain)


# The raw timeline


def _timeline(rows: object, path: Path) -> MemoryTimeline:
    if not isinstance(rows, list) or (rows and not isinstance(rows[0], list)):
        raise RecordingError(f"{path} is not a raw memory timeline: it is not a list of rows.")
    if len(rows) == 2 and all(isinstance(row, list) and len(row) != 4 for row in rows):
        raise RecordingError(
            f"{path} is a memory timeline already summed by time (times, sizes), not a raw one. Export it "
            'with export_memory_timeline("NAME.raw.json.gz").'
        )
    good = [row for row in rows if _is_timeline_row(row)]
    if rows and not good:
        raise RecordingError(
            f"{path} is not a raw memory timeline: no row has a time, an action, a size and a category."
        )
    table = np.array(good, dtype=np.int64).reshape(len(good), 4)
    unix_ns, action, size_bytes, category = (np.ascontiguousarray(table[:, column]) for column in range(4))
    notes: list[TraceNote] = []
    if len(good) < len(rows):
        lost = len(rows) - len(good)
        notes.append(
            TraceNote(
                level="warning",
                code="unreadable-rows",
                message=f"{lost} rows of the memory timeline do not have the form (time, action, bytes, category) and "
                "were left out.",
                count=lost,
            )
        )
    if len(good) and 0 <= int(unix_ns.max()) < _MIN_UNIX_NS:  # torch until 2.0 wrote us
        unix_ns = np.where(unix_ns >= 0, unix_ns * _NS_PER_US, unix_ns)
    levels = np.cumsum(size_bytes)
    peak_row = int(np.argmax(levels)) if len(good) else -1
    if peak_row >= 0 and levels[peak_row] <= 0:
        peak_row = -1
    peak_ns = int(unix_ns[peak_row]) if peak_row >= 0 else -1
    return MemoryTimeline(
        source=path.name,
        unix_ns=unix_ns,
        action=action.astype(np.int8),
        bytes=size_bytes,
        category=category.astype(np.int8),
        peak_bytes=int(levels[peak_row]) if peak_row >= 0 else 0,
        peak_row=peak_row,
        peak_unix_ns=peak_ns if peak_ns >= 0 else None,
        peak_by_category=_by_category(category[: peak_row + 1], size_bytes[: peak_row + 1]),
        final_bytes=int(levels[-1]) if len(good) else 0,
        final_by_category=_by_category(category, size_bytes),
        notes=tuple(notes),
    )


def _by_category(category: Any, size_bytes: Any) -> dict[str, int]:
    return {name: int(size_bytes[category == index].sum()) for index, name in enumerate(TIMELINE_CATEGORIES)}


def _is_timeline_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 4 or not all(type(value) is int for value in row):
        return False
    when, action, size_bytes, category = (int(value) for value in row)
    known = 1 <= action <= len(TIMELINE_ACTIONS) and 0 <= category < len(TIMELINE_CATEGORIES)
    return known and -1 <= when < 1 << 62 and abs(size_bytes) < 1 << 50


def _read_text(path: Path, limits: SnapshotLimits) -> bytes:
    _checked_size_bytes(path, limits)
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            if head != b"\x1f\x8b":
                return file.read()
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read_bounded(unpacked, path, limits.unpacked_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(f"{path} cannot be read: {_first_line(error)}.") from error


def _read_bounded(file: gzip.GzipFile, path: Path, limit_bytes: int) -> bytes:
    parts = io.BytesIO()
    while chunk := file.read(1 << 20):
        parts.write(chunk)
        if parts.tell() > limit_bytes:
            raise RecordingError(f"{path} was not read: it unpacks to more than {limit_bytes >> 20} MiB.")
    return parts.getvalue()


def _checked_size_bytes(path: Path, limits: SnapshotLimits) -> int:
    try:
        if not path.is_file():
            raise RecordingError(f"{path} is not a file.")
        size_bytes = os.stat(path).st_size
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}.") from error
    if size_bytes > limits.file_bytes:
        raise RecordingError(
            f"{path} has {size_bytes >> 20} MiB, more than the limit of {limits.file_bytes >> 20} MiB. Record "
            "fewer events: torch.cuda.memory._record_memory_history(max_entries=100000)."
        )
    return size_bytes


def _unix_ns(event: dict[str, Any]) -> int | None:
    time_us = _size(event.get("time_us"))
    return time_us * _NS_PER_US if time_us else None


def _size(value: object) -> int | None:
    """A size, an address or an index; None when it is missing or cannot be one."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pair(value: object) -> tuple[int, int] | None:
    if isinstance(value, tuple) and len(value) == 2 and all(type(part) is int for part in value):
        return (value[0], value[1])
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
