"""A memory snapshot of PyTorch -> a MemoryFile.

``python -m hotloop.evidence.trace.memory_snapshot FILE MEMORY_BYTES SECONDS`` reads one in its own process and prints
the MemoryFile and its notes as JSON, or an error. It never looks up a class or function that the pickle names, so no
code in it can run; the limits that the process sets for itself bound all other costs of a hostile file.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.decode import to_plain
from hotloop.core.errors import HotloopError, RecordingError
from hotloop.core.findings import Where
from hotloop.core.memory_categories import UNKNOWN, Allocation, Origin, categorize_allocations
from hotloop.core.memory_snapshot import (
    ACTIVE_ALLOCATED,
    ACTIVE_AWAITING_FREE,
    BLOCK_STATES,
    INACTIVE,
    MEMORY_CATEGORIES,
    BlockTotals,
    DeviceMemory,
    MemoryBlock,
    MemoryFile,
    MemoryPeak,
    OutOfMemory,
    SiteMemory,
)
from hotloop.core.trace import TraceNote

from .plain_pickle import load_plain

_LARGEST_BLOCKS = 50
_LONGEST_NAME = 2000


def main() -> None:
    """Set the limits, read the file, and print what it says."""
    path, memory_bytes, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    held_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, limit in ((resource.RLIMIT_AS, held_bytes + memory_bytes), (resource.RLIMIT_CPU, seconds)):
        most = resource.getrlimit(kind)[1]
        allowed = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (allowed, allowed))
    told: dict[str, Any]
    try:
        file, notes = summarize_snapshot(load_plain(path), path.name)
        told = {"file": to_plain(file), "notes": to_plain(notes)}
    except HotloopError as error:
        told = {"error": str(error)}
    except MemoryError:
        told = {"error": f"{path} was not read: it needs more than {memory_bytes >> 20} MiB of memory."}  # words: ok
    print(json.dumps(told))


# What made an allocation, by its stack. Only frames of torch and of libraries whose code is known are evidence; the
# names of the user's own functions are not.


_NATIVE = (
    (re.compile(r"AccumulateGrad|c10d::Reducer::"), Origin.GRADIENT),
    (re.compile(r"[Ww]orkspace"), Origin.TEMPORARY),
    (re.compile(r"torch::autograd::(?:python::Python)?Engine::"), Origin.BACKWARD),
)
"""By the name of a C++ function."""
_NATIVE_COPY = re.compile(r"\bTHPVariable_(?:to|cuda|xpu)\b|\bdispatch_to\b")

_PYTHON = (
    (r"torch/optim/", r"_init_group|_init_state|init_state|__setstate__|load_state_dict", Origin.STATE),
    (r"bitsandbytes/optim/|deepspeed/runtime/|apex/optimizers/", r"_?init\w*state\w*|load_state_dict", Origin.STATE),
    (r"torch/optim/(?!lr_scheduler|swa_utils)",
     r"step|wrapper|_use_grad|_multi_tensor_\w+|_single_tensor_\w+|_fused_\w+",
     Origin.OPTIMIZER),
    (r"(?:bitsandbytes/optim|apex/optimizers|deepspeed/ops)/", r"step|update_step", Origin.OPTIMIZER),
    (r"torch/nn/utils/clip_grad\.py", r".*", Origin.TEMPORARY),
    (r"torch/distributed/fsdp/.*",
     r"_?post_backward\w*|foreach_reduce\w*|_reduce_grad\w*|unshard_grad",
     Origin.GRADIENT),
    (r"torch/nn/parallel/distributed\.py", r"_ddp_init_helper", Origin.GRADIENT),
    (r"torch/distributed/fsdp/.*",
     r"_init\w*param\w*|init_(?:flat|unsharded)_param\w*|flatten_tensors\w*|\w*all_gather\w*|_?unshard\w*|_?alloc\w*|shard",
     Origin.PARAMETER),
    (r"torch/nn/modules/module\.py", r"_apply|to|cuda|xpu|to_empty|load_state_dict|_load_from_state_dict|convert",
     Origin.PARAMETER),
    (r"torch/nn/(?:modules/.*|parameter)\.py",
     r"__init__|__new__|reset_parameters|_reset_parameters|__deepcopy__|materialize",
     Origin.PARAMETER),
    (r"transformers/modeling_utils\.py", r"from_pretrained|_load_\w+|load_\w+", Origin.PARAMETER),
    (r"torch/utils/data/", r".*", Origin.INPUT),
    (r"accelerate/(?:utils/operations|data_loader)\.py", r"send_to_device|__iter__", Origin.INPUT),
    (r"lightning\w*/.*", r"(?:_?)(?:batch_to_device|transfer_batch_to_device|move_data_to_device)", Origin.INPUT),
    (r"transformers/trainer\.py", r"_prepare_inputs?", Origin.INPUT),
    (r"torch/_tensor\.py|torch/autograd/__init__\.py", r"backward|grad", Origin.BACKWARD),
    (r"torch/autograd/graph\.py", r"_engine_run_backward", Origin.BACKWARD),
    (r"torch/_functorch/.*|torch/utils/checkpoint\.py|torch/distributed/fsdp/.*",
     r"backward|unpack_hook|_?pre_backward\w*",
     Origin.BACKWARD),
    (r"torch/nn/modules/module\.py", r"_call_impl|_wrapped_call_impl|_slow_forward|inner", Origin.FORWARD),
)  # fmt: skip
_COMPILED = tuple((re.compile(f"(?:^|/)(?:{file})"), re.compile(name), origin) for file, name, origin in _PYTHON)
_FUNCTION = re.compile(r"(?:^|/)torch/autograd/function\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOrigin:
    """The evidence in a stack."""

    origin: Origin
    is_nested: bool
    """Whether it is in a backward, but made by something else."""
    has_native: bool
    """Whether C++ frames were recorded."""


UNTOLD = StackOrigin(origin=Origin.UNTOLD, is_nested=False, has_native=False)


def classify_origin(frames: Sequence[tuple[str, str]]) -> StackOrigin:
    """Of a stack of (file with forward slashes, function), the innermost frame first; UNTOLD without frames."""
    if not frames:
        return UNTOLD
    innermost = Origin.ELSEWHERE
    in_backward = has_native = copies = False
    inner_function = ""
    for file, function in frames:
        if file.endswith(".py") or file.startswith("<"):
            # The user's own function (torch.autograd.Function) is called both in its forward and in its backward.
            called_back = inner_function == "backward" and _FUNCTION.search(file) is not None
            found = Origin.BACKWARD if called_back else _read_python(file, function)
            inner_function = function.rpartition(".")[2]
        else:
            has_native = True
            copies = copies or _NATIVE_COPY.search(function) is not None
            found = next((origin for pattern, origin in _NATIVE if pattern.search(function)), Origin.ELSEWHERE)
        in_backward = in_backward or found is Origin.BACKWARD
        if innermost is Origin.ELSEWHERE:
            innermost = found
    if innermost is Origin.FORWARD and in_backward:
        return StackOrigin(origin=Origin.RECOMPUTE, is_nested=False, has_native=has_native)
    if innermost is Origin.ELSEWHERE and copies:
        innermost = Origin.COPY
    nested = in_backward and innermost not in (Origin.BACKWARD, Origin.GRADIENT)
    return StackOrigin(origin=innermost, is_nested=nested, has_native=has_native)


@lru_cache(maxsize=1 << 16)
def _read_python(file: str, function: str) -> Origin:
    function = function.rpartition(".")[2]  # some versions of torch write the qualified name
    for files, functions, origin in _COMPILED:  # the caller cuts names, so that no pattern takes long
        if functions.fullmatch(function) is not None and files.search(file) is not None:
            return origin
    return Origin.ELSEWHERE


# From plain values to a MemoryFile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """The content of a recorded stack. Equal stacks share a ``key``; it is empty if none was recorded."""

    where: Where | None = None
    origin: StackOrigin = UNTOLD
    key: bytes = b""


_NO_STACK = _Stack()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    device: int
    address: int
    bytes: int
    requested_bytes: int | None
    state: str
    stack: _Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    device: int
    reserved_bytes: int
    blocks: list[_Block]

    @property
    def active_bytes(self) -> int:
        return sum(block.bytes for block in self.blocks if block.state != INACTIVE)


def summarize_snapshot(value: object, source: str) -> tuple[MemoryFile, tuple[TraceNote, ...]]:
    """The content of a dict from torch.cuda.memory._snapshot() (or of a plain list of segments)."""
    if isinstance(value, list):  # torch.cuda.memory_snapshot(), pickled by hand
        value = {"segments": value}
    raw_segments = _dict(value).get("segments")
    if not isinstance(raw_segments, list):
        raise RecordingError(
            f"{source} is a pickle, but not a memory snapshot: it has no list of segments. Record one with "
            "torch.cuda.memory._dump_snapshot(NAME)."
        )
    stacks = _Stacks()
    segments = [_read_segment(_dict(raw), stacks, source) for raw in raw_segments]
    traces = _list(_dict(value).get("device_traces"))
    events = {device: list(map(_dict, of_device)) for device, of_device in enumerate(map(_list, traces)) if of_device}
    notes: list[TraceNote] = []
    devices: list[DeviceMemory] = []
    failures: list[OutOfMemory] = []
    for device in sorted({segment.device for segment in segments} | events.keys()):
        of_device = [segment for segment in segments if segment.device == device]
        summary, failed = _read_device(device, of_device, events.get(device, []), stacks, notes)
        devices.append(summary)
        failures.extend(failed)
    if not events:
        notes.append(
            TraceNote(
                level="info",
                code="no-memory-history",
                message="The snapshot has no recorded events, so there is no peak and no history. Call "
                "torch.cuda.memory._record_memory_history() before the code to analyze.",
            )
        )
    active = [block for segment in segments for block in segment.blocks if block.state != INACTIVE]
    active.sort(key=lambda block: (-block.bytes, block.device, block.address))
    file = MemoryFile(
        source=source,
        devices=tuple(devices),
        largest_blocks=tuple(
            MemoryBlock(
                device=block.device,
                address=block.address,
                bytes=block.bytes,
                requested_bytes=block.requested_bytes,
                state=block.state,
                where=block.stack.where,
            )
            for block in active[:_LARGEST_BLOCKS]
        ),
        out_of_memory=tuple(failures),
    )
    return file, tuple(notes)


def _read_segment(values: dict[str, Any], stacks: _Stacks, source: str) -> _Segment:
    """Sizes are summed from the blocks, which are more precise than the segment's own."""
    address, reserved_bytes = _size(values.get("address")), _size(values.get("total_size"))
    device = _size(values.get("device", 0))
    blocks: list[_Block] = []
    at = address or 0
    for fields in map(_dict, _list(values.get("blocks"))):
        size_bytes, state = _size(fields.get("size")), fields.get("state")
        if size_bytes is None or not isinstance(state, str):
            raise RecordingError(f"{source} is not a memory snapshot that hotloop knows: a block has no size or state.")
        block_address = _size(fields.get("address"))
        if block_address is None:  # old snapshots give only the sizes, in order
            block_address = at
        at = block_address + size_bytes
        blocks.append(_read_block(fields, device or 0, block_address, size_bytes, state[:64], stacks))
    held_bytes = sum(block.bytes for block in blocks)
    if None in (address, device) or reserved_bytes is None or held_bytes > reserved_bytes:
        raise RecordingError(f"{source} is not a memory snapshot that hotloop knows: a segment has no place or size.")
    return _Segment(device=device or 0, reserved_bytes=reserved_bytes, blocks=blocks)


def _read_block(
    fields: dict[str, Any], device: int, address: int, size_bytes: int, state: str, stacks: _Stacks
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
    return _Block(
        device=device,
        address=address,
        bytes=size_bytes,
        requested_bytes=requested_bytes if active else None,
        state=state,
        stack=stacks.look(frames) if active else _NO_STACK,
    )


def _read_device(
    device: int, segments: list[_Segment], events: list[dict[str, Any]], stacks: _Stacks, notes: list[TraceNote]
) -> tuple[DeviceMemory, list[OutOfMemory]]:
    blocks = [block for segment in segments for block in segment.blocks]
    active = [block for block in blocks if block.state != INACTIVE]
    reserved_bytes = sum(segment.reserved_bytes for segment in segments)
    requested_bytes = _sum_requested(active)
    history = _History(device, events, [stacks.look(event.get("frames")) for event in events])
    peak, failures = _walk_events(history, active, requested_bytes, reserved_bytes, notes)
    summary = DeviceMemory(
        device=device,
        segment_count=len(segments),
        reserved_bytes=reserved_bytes,
        allocated_bytes=sum(block.bytes for block in blocks if block.state == ACTIVE_ALLOCATED),
        active_bytes=sum(block.bytes for block in active),
        requested_bytes=requested_bytes,
        free_segment_bytes=sum(segment.reserved_bytes for segment in segments if segment.active_bytes == 0),
        split_bytes=sum(
            segment.reserved_bytes - segment.active_bytes for segment in segments if segment.active_bytes > 0
        ),
        largest_free_block_bytes=max((block.bytes for block in blocks if block.state == INACTIVE), default=0),
        blocks=_totals(blocks),
        sites=_by_site((block.stack.where, block.bytes, 1) for block in active),
        events=dict(sorted(Counter(action[:64] for action in history.actions).items())),
        peak=peak,
    )
    return summary, failures


def _sum_requested(blocks: Iterable[_Block]) -> int | None:
    """None if one of them does not say."""
    sizes = [block.requested_bytes for block in blocks]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _totals(blocks: list[_Block]) -> tuple[BlockTotals, ...]:
    by_state: dict[str, list[_Block]] = defaultdict(list)
    for block in blocks:
        by_state[block.state].append(block)
    order = [state for state in BLOCK_STATES if state in by_state]
    order += sorted(by_state.keys() - set(BLOCK_STATES))
    return tuple(
        BlockTotals(
            state=state,
            count=len(by_state[state]),
            bytes=sum(block.bytes for block in by_state[state]),
            requested_bytes=_sum_requested(by_state[state]),
        )
        for state in order
    )


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


@dataclass(frozen=True, slots=True)
class _History:
    """The recorded events of one device, and the stack of each."""

    device: int
    events: list[dict[str, Any]]
    stacks: list[_Stack]

    @property
    def actions(self) -> list[str]:
        return [str(event.get("action")) for event in self.events]


def _walk_events(
    history: _History,
    active: list[_Block],
    requested_bytes: int | None,
    reserved_bytes: int,
    notes: list[TraceNote],
) -> tuple[MemoryPeak | None, list[OutOfMemory]]:
    """The highest level and the failures, traced back from the state that the snapshot contains.

    The events are the newest ones of a ring, so their start is arbitrary and only the end is known.
    """
    events, actions, device = history.events, history.actions, history.device
    sizes = np.array([_size(event.get("size")) or 0 for event in events], dtype=np.int64)
    in_use = np.array([_IN_USE.get(action, 0) for action in actions], dtype=np.int64) * sizes
    reserved = np.array([_RESERVED.get(action, 0) for action in actions], dtype=np.int64) * sizes
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
    peak = _peak(history, in_use_levels, reserved_levels, active, notes) if consistent else None
    failures = [
        OutOfMemory(
            device=device,
            event=index,
            failed_bytes=int(sizes[index]),
            device_free_bytes=_size(events[index].get("device_free")),
            requested_bytes=int(in_use_levels[index]) if consistent else None,
            reserved_bytes=int(reserved_levels[index]) if consistent else None,
            where=history.stacks[index].where,
        )
        for index, action in enumerate(actions)
        if action == "oom"
    ]
    return peak, failures


def _peak(
    history: _History,
    in_use_levels: np.ndarray[Any, np.dtype[np.int64]],
    reserved_levels: np.ndarray[Any, np.dtype[np.int64]],
    active: list[_Block],
    notes: list[TraceNote],
) -> MemoryPeak:
    top = int(np.argmax(in_use_levels))  # the level before event `top`, which is the one after event `top - 1`
    found = _list_allocations(history, active)
    category = categorize_allocations([one.allocation for one in found])
    parts: list[tuple[Where | None, int, int | None]] = []
    by_category: Counter[str] = Counter()
    for one, named in zip(found, category, strict=True):
        if one.allocation.made < top and (one.completed is None or one.completed >= top):
            parts.append((one.where, one.bytes, 1))
            by_category[named] += one.bytes
    total_bytes = int(in_use_levels[top])
    rest_bytes = total_bytes - sum(part_bytes for _, part_bytes, _ in parts)
    older_bytes = rest_bytes + sum(one.bytes for one in found if one.allocation.made < 0 and one.allocation.site == b"")
    if older_bytes * 10 > total_bytes and rest_bytes >= 0:
        notes.append(
            TraceNote(
                level="info",
                code="memory-older",
                message=f"device {history.device}: {older_bytes >> 20:,} MiB of the peak were allocated before "
                "recording began, so their origin is unknown. Start recording before the model is built.",
            )
        )
    if rest_bytes < 0:  # an address was used twice without a free in between: no line can be trusted
        parts, rest_bytes = [], total_bytes
        by_category.clear()
    if rest_bytes > 0:  # allocated before the first event and freed after the peak: nobody recorded who made it
        parts.append((None, rest_bytes, None))
        by_category[UNKNOWN] += rest_bytes
    _note_unknown_origins(found, history.device, notes)
    return MemoryPeak(
        requested_bytes=total_bytes,
        reserved_bytes=int(reserved_levels[top]),
        event=top - 1,
        by_site=_by_site(parts),
        by_category={name: by_category[name] for name in MEMORY_CATEGORIES if by_category[name]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allocation:
    """An allocation of the history, or a block that is older than it."""

    allocation: Allocation
    bytes: int = 0
    completed: int | None = None
    """The event with which its memory became free; None if it was in use at the end."""
    where: Where | None = None
    has_native: bool = False


def _list_allocations(history: _History, active: list[_Block]) -> list[_Allocation]:
    """Everything that was in use at some time, the oldest first."""
    events, actions, stacks = history.events, history.actions, history.stacks
    addresses = [_size(event.get("addr")) for event in events]
    mine = [at for at, action in enumerate(actions) if action == "alloc" and addresses[at] is not None]
    allocated_here = {addresses[at] for at in mine}
    found = [
        _Allocation(
            allocation=Allocation(
                origin=block.stack.origin.origin,
                made=-1,
                freed=None,
                freed_by=Origin.UNTOLD,
                site=block.stack.key,
                is_nested=block.stack.origin.is_nested,
            ),
            bytes=block.requested_bytes or 0,
            where=block.stack.where,
            has_native=block.stack.origin.has_native,
        )
        # Memory that the snapshot still contains and the events never allocated was there all the time.
        for block in active
        if block.address not in allocated_here
    ]
    ends = _find_ends(actions, addresses)
    silent = _classify_silence([stacks[at].origin for at in mine])
    for at in mine:
        key = stacks[at].key
        stack = stacks[at].origin if key else silent
        asked, completed = ends.get(at, (None, None))
        by = UNTOLD
        if asked is not None and stacks[asked].key != key:  # without stacks of frees, torch writes the allocation's
            by = stacks[asked].origin if stacks[asked].key else silent
        found.append(
            _Allocation(
                allocation=Allocation(
                    origin=stack.origin,
                    made=at,
                    freed=completed if asked is None else asked,
                    freed_by=by.origin,
                    site=key,
                    is_nested=stack.is_nested,
                ),
                bytes=_size(events[at].get("size")) or 0,
                completed=completed,
                where=stacks[at].where,
                has_native=stack.has_native,
            )
        )
    if "oom" not in (actions[mine[-1] :] if mine else []):
        # The program itself wrote the snapshot: whatever made the last allocation, backward or optimizer, was over.
        end = Allocation(
            origin=Origin.ELSEWHERE, made=len(events), freed=None, freed_by=Origin.UNTOLD, site=_END_OF_RECORDING
        )
        found.append(_Allocation(allocation=end))
    return found


_END_OF_RECORDING = b"end"


def _find_ends(actions: list[str], addresses: list[int | None]) -> dict[int, tuple[int | None, int]]:
    """By the event of an allocation: the events that requested its end (None: not recorded) and that completed it."""
    live: dict[int, int] = {}
    requested: dict[int, int] = {}
    ends: dict[int, tuple[int | None, int]] = {}
    for index, (action, address) in enumerate(zip(actions, addresses, strict=True)):
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
    for address, index in requested.items():  # released by the program, but another stream still needs it
        if address in live:
            ends[live.pop(address)] = (index, len(actions))
    return ends


def _classify_silence(stacks: list[StackOrigin]) -> StackOrigin:
    """The meaning of an allocation without a stack. If only Python frames were recorded and the forward has some, it is
    the backward: autograd works for a device in its own thread, which has none."""
    python_only = not any(stack.has_native for stack in stacks)
    if python_only and any(stack.origin is Origin.FORWARD for stack in stacks):
        return StackOrigin(origin=Origin.BACKWARD, is_nested=False, has_native=False)
    return UNTOLD


def _note_unknown_origins(found: list[_Allocation], device: int, notes: list[TraceNote]) -> None:
    """Says what the categories rest on, if that is less than complete stacks."""
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
            message=f"device {device}: {message}. To record complete stacks: "
            'torch.cuda.memory._record_memory_history(context="all", stacks="all").',
        )
    )


_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|/lib/python3\.\d+/|/torchinductor_|^<(?!ipython|stdin)"
    r"|/torch/(?:_\w+|amp|autograd|cuda|distributed|fx|nn|optim|profiler|utils)/"
)
"""Files that are not the user's: libraries, what the compiler generated, and a torch that was built from source."""


class _Stacks:
    """Lists of frames -> their content; equal lists cost one search."""

    def __init__(self) -> None:
        self._by_frames: dict[bytes, _Stack] = {}
        self._lines: dict[tuple[str, int, str], tuple[bool, Where | None]] = {}

    def look(self, frames: object) -> _Stack:
        if not isinstance(frames, list) or not frames:
            return _NO_STACK
        key = array("Q", map(id, frames)).tobytes()  # snapshots share equal frames, and they live as long as we do
        found = self._by_frames.get(key)
        if found is None:
            plain = [frame for frame in map(_read_frame, frames) if frame is not None]
            origin = classify_origin([(file.replace("\\", "/"), function) for file, _, function in plain])
            found = self._by_frames[key] = _Stack(where=self._search(plain), origin=origin, key=key)
        return found

    def _search(self, frames: Sequence[tuple[str, int, str]]) -> Where | None:
        """The innermost frame in the user's code, else the innermost Python frame, else None."""
        fallback: Where | None = None
        for frame in frames:
            if frame not in self._lines:
                self._lines[frame] = _place_frame(*frame)
            users, where = self._lines[frame]
            if users:
                return where
            fallback = fallback or where
        return fallback


def _read_frame(frame: object) -> tuple[str, int, str] | None:
    values = _dict(frame)
    file, line, function = values.get("filename"), values.get("line"), values.get("name")
    if isinstance(file, str) and isinstance(line, int) and isinstance(function, str):
        return file[:_LONGEST_NAME], line, function[:_LONGEST_NAME]
    return None


def _place_frame(file: str, line: int, function: str) -> tuple[bool, Where | None]:
    """Whether a frame is in the user's code, and its place if it is Python."""
    plain = file.replace("\\", "/")
    is_python = plain.endswith(".py") or plain.startswith("<ipython") or "ipykernel_" in plain
    where = Where(file=file, line=line, function=function) if is_python else None
    return is_python and _LIBRARY.search(plain) is None, where


def _size(value: object) -> int | None:
    """A size, an address or an index; None if it is missing or cannot be one."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


if __name__ == "__main__":
    main()
