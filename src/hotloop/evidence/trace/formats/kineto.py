"""A Chrome trace of torch.profiler (Kineto), plain or gzip -> Trace, in windows and bounded memory.

Reads what Kineto has written since 2021: times in whole microseconds or with decimals, a header or a bare list, and the
older names of categories (Operator, Runtime, Kernel, ...). Times are parsed from their decimal text. Flow arrows are
skipped, because correlation ids contain the same.
"""

from __future__ import annotations

import gc
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from hotloop.core.errors import TraceError
from hotloop.core.trace import DEVICE_WORK, Category, DeviceFacts, MemoryEvents, TraceFacts, TraceNote
from hotloop.evidence.trace.byte_source import ByteSource, Progress
from hotloop.evidence.trace.chrome_events import ABSENT, DAMAGE, WINDOW_BYTES, ChromeEvents, Event, in_brackets
from hotloop.evidence.trace.columns import (
    COLUMN_TYPES,
    GrowingArray,
    Interner,
    SparseColumn,
    TraceColumns,
    TraceFormat,
    assemble_trace,
    merge_equal,
)
from hotloop.evidence.trace.decimals import MISSING as NO_TIME
from hotloop.evidence.trace.decimals import OK, parse_microseconds
from hotloop.evidence.trace.health import judge_columns

Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]

UNKNOWN = -(2**63)
"""Marks an integer that an event does not have."""

MAX_TEXT_BYTES = 64 << 20
"""For the distinct texts of one fact."""
_MAX_EXTRA_TEXT = 1024
_HOUR_NS = 3600 * 10**9
_ON_DEVICE = (*DEVICE_WORK, Category.DEVICE_ANNOTATION, Category.SYNC)

_CATEGORIES: Mapping[str, Category] = {
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "hip_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "driver": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "cuda_sync": Category.SYNC,
    "hip_sync": Category.SYNC,
    "xpu_sync": Category.SYNC,
    "user_annotation": Category.ANNOTATION,
    "nvtx": Category.ANNOTATION,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
}
"""By lower-case name; the older names differ in case."""

_ANNOTATION_NAMES = ("ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")
"""Ranges that files without user_annotation call operators."""

Integer: TypeAlias = int | str | None
Number: TypeAlias = float | str | None


# The possible contents of args, by kind of event. Attributes have the facts' names from core.trace.


class _CallArgs(Struct, gc=False):
    correlation: Integer = -1
    external_id: Integer = msgspec.field(name="External id", default=-1)
    old_external_id: Integer = msgspec.field(name="external id", default=-1)


class _CollectiveArgs(_CallArgs, gc=False):
    collective: Raw = msgspec.field(name="Collective name", default=ABSENT)
    process_group_name: Raw = msgspec.field(name="Process Group Name", default=ABSENT)
    process_group_description: Raw = msgspec.field(name="Process Group Description", default=ABSENT)
    process_group_id: Raw = msgspec.field(name="Process Group ID", default=ABSENT)
    process_group_ranks: Raw = msgspec.field(name="Process Group Ranks", default=ABSENT)
    group_size: Integer = msgspec.field(name="Group size", default=UNKNOWN)
    in_elements: Integer = msgspec.field(name="In msg nelems", default=UNKNOWN)
    out_elements: Integer = msgspec.field(name="Out msg nelems", default=UNKNOWN)
    collective_sequence: Integer = msgspec.field(name="Seq", default=UNKNOWN)


class _HostArgs(_CollectiveArgs, gc=False):
    sequence_number: Integer = msgspec.field(name="Sequence number", default=UNKNOWN)
    forward_thread: Integer = msgspec.field(name="Fwd thread id", default=UNKNOWN)
    flops: Integer = msgspec.field(name="Flops", default=UNKNOWN)
    kernel_flops: Integer = msgspec.field(name="kernel_flop", default=UNKNOWN)
    shapes: Raw = msgspec.field(name="Input Dims", default=ABSENT)
    dtypes: Raw = msgspec.field(name="Input type", default=ABSENT)
    concrete_inputs: Raw = msgspec.field(name="Concrete Inputs", default=ABSENT)
    call_stack: Raw = msgspec.field(name="Call stack", default=ABSENT)


class _DeviceArgs(_CollectiveArgs, gc=False):
    device: Integer = UNKNOWN
    stream: Integer = UNKNOWN
    bytes: Integer = UNKNOWN
    blocks_per_sm: Number = msgspec.field(name="blocks per SM", default=math.nan)
    grid: Raw = ABSENT
    block: Raw = ABSENT
    occupancy_percent: Number = msgspec.field(name="est. achieved occupancy %", default=math.nan)
    sync_kind: Raw = msgspec.field(name="cuda_sync_kind", default=ABSENT)
    wait_on_stream: Integer = UNKNOWN
    wait_on_record_correlation: Integer = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=UNKNOWN)


class _MemoryArgs(Struct, gc=False):
    reserved_bytes: Integer = msgspec.field(name="Total Reserved", default=-1)
    allocated_bytes: Integer = msgspec.field(name="Total Allocated", default=-1)
    bytes: Integer = msgspec.field(name="Bytes", default=UNKNOWN)
    device_index: Integer = msgspec.field(name="Device Id", default=-1)
    device_type: Integer = msgspec.field(name="Device Type", default=-1)
    address: Integer = msgspec.field(name="Addr", default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArgsKind:
    """How the args of some categories are decoded, and which facts are taken from them."""

    one: type[Any]
    categories: tuple[Category, ...]
    integers: tuple[str, ...] = ()
    """Sparse facts, which are attributes of ``one`` too."""
    numbers: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Sparse fact -> (attribute, factor)."""
    texts: tuple[str, ...] = ()
    may_communicate: bool = False
    """Whether some of them are collectives, with facts that only those have."""


_COLLECTIVE_INTEGERS = ("group_size", "in_elements", "out_elements", "collective_sequence")
_COLLECTIVE_TEXTS = ("collective", "process_group_ranks")
_PROCESS_GROUP = ("process_group_name", "process_group_description", "process_group_id")
"""In the order of preference."""

_KINDS = (
    _ArgsKind(
        one=_HostArgs,
        categories=(Category.CPU_OP, Category.ANNOTATION),
        integers=("sequence_number", "forward_thread", "flops"),
        texts=("shapes", "dtypes", "concrete_inputs", "call_stack"),
        may_communicate=True,
    ),
    _ArgsKind(one=_CallArgs, categories=(Category.RUNTIME, Category.DEVICE_ANNOTATION, Category.OTHER)),
    _ArgsKind(
        one=_DeviceArgs,
        categories=(Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.SYNC),
        integers=("bytes", "wait_on_stream", "wait_on_record_correlation"),
        numbers={"blocks_per_sm": ("blocks_per_sm", 1.0), "occupancy_ratio": ("occupancy_percent", 0.01)},
        texts=("grid", "block", "sync_kind"),
        may_communicate=True,
    ),
)


@lru_cache(maxsize=1000)
def _number_category(name: str | None) -> int:
    return int(_CATEGORIES.get(name.lower(), Category.OTHER) if name is not None else Category.OTHER)


def read_kineto(
    path: Path, progress: Progress | None = None, *, window_bytes: int = WINDOW_BYTES
) -> tuple[TraceColumns, ...]:
    """The trace in the file, as a tuple of one. Raises TraceError if the file is not a trace.

    ``progress`` gets (bytes read, bytes of the file). Memory is bounded by the columns and a few ``window_bytes``.
    """
    try:
        with _no_collection(), ByteSource(path, progress) as source:
            reader = _Reader(path.name)
            windows = ChromeEvents(source, path.name, window_bytes)
            for events in windows:
                reader.add(events)
            reader.note_file(source, windows)
            return (reader.finish(_read_header(windows, reader)),)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turns off the cycle collector, which would walk millions of values that are in no cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Reader:
    """Columns under construction."""

    def __init__(self, name: str) -> None:
        self.file_name = name
        self.notes: list[TraceNote] = []
        self.count = 0
        self.left_out: Counter[str] = Counter()
        """By the code of the note that reports it."""
        self.has_fraction = False
        self.columns = {name: GrowingArray(kind) for name, kind in COLUMN_TYPES.items() if name != "process"}
        self.sparse: dict[str, tuple[GrowingArray, GrowingArray]] = {}
        self.tables: dict[str, Interner] = {}
        self.names = Interner()
        self.threads = Interner()
        self.streams = Interner()
        self.memory: list[tuple[Int64s, ...]] = []

    # Events

    def add(self, events: list[Event]) -> None:
        complete = [event for event in events if event.ph == "X"]
        if len(complete) < len(events):
            memory = [event for event in events if event.name == "[memory]" and event.ph in _INSTANTS]
            if memory:
                self._add_memory(memory)
        if complete:
            self._add_complete(complete)

    def _add_complete(self, events: list[Event]) -> None:
        start_ns, of_start = parse_microseconds([event.ts for event in events])
        duration_ns, of_duration = parse_microseconds([event.dur for event in events])
        without = (of_start == OK) & (of_duration == NO_TIME)
        good = (of_start == OK) & (of_duration == OK)
        negative = good & (duration_ns < 0)
        self.left_out["no-duration"] += int(without.sum())
        self.left_out["wrong-times"] += int((~good & ~without).sum())
        self.left_out["negative-duration"] += int(negative.sum())
        good &= ~negative
        if not good.all():
            events = [event for event, keep in zip(events, good.tolist(), strict=True) if keep]
            start_ns, duration_ns = start_ns[good], duration_ns[good]
            if not events:
                return
        self.has_fraction |= bool((start_ns % 1000).any() or (duration_ns % 1000).any())
        count = len(events)
        category = np.fromiter((_number_category(event.cat) for event in events), dtype=np.int8, count=count)
        columns: dict[str, NDArray[Any]] = {
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "name": self.names.numbers_of([event.name for event in events]),
            "category": category,
            "thread": self.threads.numbers_of([(event.pid, event.tid) for event in events]),
            "device": np.full(count, -1, dtype=np.int32),
            "stream": np.full(count, -1, dtype=np.int32),
            "correlation": np.full(count, -1, dtype=np.int64),
            "external_id": np.full(count, -1, dtype=np.int64),
        }
        args = [event.args for event in events]
        for kind in _KINDS:
            rows = np.flatnonzero(np.isin(category, kind.categories))
            if len(rows):
                self._add_args(kind, rows, [args[row] for row in rows.tolist()], columns)
        self._place_on_devices(events, columns)
        for name, values in columns.items():
            self.columns[name].append(values)
        self.count += count

    def _add_args(self, kind: _ArgsKind, rows: NDArray[np.intp], raws: list[Raw], columns: dict[str, Any]) -> None:
        values = self._decode_args(kind.one, raws)
        external_id = _take_integers(values, "external_id", -1)
        old = _take_integers(values, "old_external_id", -1)
        columns["external_id"][rows] = _positive_or_unknown(np.where(external_id == -1, old, external_id))
        if kind.one in (_CallArgs, _DeviceArgs):
            columns["correlation"][rows] = _positive_or_unknown(_take_integers(values, "correlation", -1))
        if kind.one is _DeviceArgs:
            self._add_places(rows, values, columns)
        global_rows = (rows + self.count).astype(np.int32)
        for fact in kind.integers:
            integers = _take_integers(values, fact, UNKNOWN)
            if fact == "flops":
                integers = np.where(integers == UNKNOWN, _take_integers(values, "kernel_flops", UNKNOWN), integers)
            self._add_sparse(fact, global_rows, integers, integers != UNKNOWN)
        for fact, (attribute, factor) in kind.numbers.items():
            numbers = _take_numbers(values, attribute) * factor
            self._add_sparse(fact, global_rows, numbers, np.isfinite(numbers))
        for fact in kind.texts:
            self._add_texts(fact, global_rows, list(map(attrgetter(fact), values)))
        if kind.may_communicate:
            self._add_collectives(global_rows, values)

    def _add_collectives(self, rows: Int32s, values: list[Any]) -> None:
        named = list(map(attrgetter("collective"), values))
        if named.count(ABSENT) == len(named):
            return
        at = [place for place, raw in enumerate(named) if raw is not ABSENT]
        rows, values = rows[at], [values[place] for place in at]
        for fact in _COLLECTIVE_INTEGERS:
            integers = _take_integers(values, fact, UNKNOWN)
            self._add_sparse(fact, rows, integers, integers != UNKNOWN)
        for fact in _COLLECTIVE_TEXTS:
            self._add_texts(fact, rows, list(map(attrgetter(fact), values)))
        columns = [list(map(attrgetter(attribute), values)) for attribute in _PROCESS_GROUP]
        chosen = [
            next((raw for raw in choices if bytes(raw) not in _EMPTY_TEXTS), ABSENT)
            for choices in zip(*columns, strict=True)
        ]
        self._add_texts("process_group", rows, chosen)

    def _decode_args(self, one: type[Any], raws: list[Raw]) -> list[Any]:
        if raws.count(ABSENT):
            raws = [_NO_ARGS if not len(memoryview(raw)) else raw for raw in raws]
        try:
            return _DECODERS[one](in_brackets(b",".join(raws)))
        except DAMAGE:
            return [self._decode_args_alone(one, raw) for raw in raws]

    def _decode_args_alone(self, one: type[Any], raw: Raw) -> Any:
        try:
            return _DECODERS_OF_ONE[one](raw)
        except DAMAGE:
            self.left_out["damaged-args"] += bytes(raw) != b"null"
            return one()

    def _add_places(self, rows: NDArray[np.intp], values: list[Any], columns: dict[str, Any]) -> None:
        """Device and stream from the args; UNKNOWN is left for ``_place_on_devices``."""
        device = _take_integers(values, "device", UNKNOWN)
        device = np.where((device < -1) | (device >= 2**31), -2, device)
        columns["device"][rows] = device
        streams = list(map(attrgetter("stream"), values))
        keys = [
            (where, stream) if stream != UNKNOWN and stream is not None else None
            for where, stream in zip(device.tolist(), streams, strict=True)
        ]
        numbers = np.full(len(rows), -2, dtype=np.int32)
        known = [at for at, key in enumerate(keys) if key is not None and key[0] != -2]
        numbers[known] = self.streams.numbers_of([keys[at] for at in known])
        columns["stream"][rows] = numbers

    def _place_on_devices(self, events: list[Event], columns: dict[str, Any]) -> None:
        """If the args do not say, Kineto's process of device work is the device and its thread the stream."""
        category, device, stream = columns["category"], columns["device"], columns["stream"]
        ranges = category == Category.DEVICE_ANNOTATION
        device[ranges] = stream[ranges] = -2
        for row in np.flatnonzero((device == -2) | (stream == -2)).tolist():
            pid, tid = events[row].pid, events[row].tid
            if device[row] == -2:
                number = _read_integer(pid)
                device[row] = number if 0 <= number < 2**31 else -1
            if stream[row] == -2:
                label = tid.removeprefix("stream ") if isinstance(tid, str) else tid
                stream[row] = -1 if label is None else self.streams[(int(device[row]), label)]

    def _add_sparse(self, fact: str, rows: Int32s, values: NDArray[Any], has: NDArray[np.bool_]) -> None:
        if not has.any():
            return
        if fact not in self.sparse:
            self.sparse[fact] = GrowingArray(np.int32), GrowingArray(values.dtype)
        of_rows, of_values = self.sparse[fact]
        of_rows.append(rows[has])
        of_values.append(values[has])

    def _add_texts(self, fact: str, rows: Int32s, raws: list[Raw]) -> None:
        if raws.count(ABSENT) == len(raws):
            return
        table = self.tables.get(fact)
        if table is None:
            table = self.tables[fact] = Interner(MAX_TEXT_BYTES)
            table.update(dict.fromkeys(_EMPTY_TEXTS, -1))
        numbers = table.numbers_of(list(map(bytes, raws)))
        self._add_sparse(fact, rows, numbers, numbers >= 0)

    # Everything else that is an event

    def _add_memory(self, events: list[Event]) -> None:
        time_ns, state = parse_microseconds([event.ts for event in events])
        values = self._decode_args(_MemoryArgs, [event.args for event in events])
        integers = [_take_integers(values, name, -1) for name in _MEMORY_COLUMNS[1:]]
        keep = (integers[1] != UNKNOWN) & (state == OK)
        self.left_out["wrong-times"] += int((~keep).sum())
        self.memory.append(tuple(column[keep] for column in (time_ns, *integers)))

    # The end

    def note_file(self, source: ByteSource, windows: ChromeEvents) -> None:
        if not windows.has_ended:
            why = f" ({source.damage})" if source.damage else ""
            self._note("error", "truncated", f"The file is truncated{why}; the missing events are not in any figure.")
        elif source.damage:
            self._note("error", "damaged", f"Part of the file could not be read: {source.damage}.")
        salvaged, lost = windows.salvaged_windows, windows.lost_count
        if salvaged and (windows.has_ended or salvaged > 1 or lost > 1):
            message = "Parts of the file are not valid JSON and were read event by event."
            self._note("warning", "salvaged", message, salvaged)
        self.left_out["lost-events"] = lost
        self.left_out["texts-left-out"] = sum(table.left_out_count for table in self.tables.values())
        for code, (level, message) in _LEFT_OUT.items():
            if count := self.left_out[code]:
                self._note(level, code, f"{count:,} {message}", count)

    def _note(self, level: str, code: str, message: str, count: int | None = None) -> None:
        self.notes.append(TraceNote(level=level, code=code, message=message, count=count))

    def finish(self, header: Mapping[str, Any]) -> TraceColumns:
        if not self.count:
            self._note("error", "no-events", "The file contains no event with a duration.")
        columns = {name: column.finish() for name, column in self.columns.items()}
        self.columns.clear()
        sparse = self._finish_sparse()
        columns, sparse = self._drop_wrong_times(columns, sparse)
        epoch_ns = int(columns["start_ns"].min()) if len(columns["start_ns"]) else 0
        columns["start_ns"] -= epoch_ns
        names = self._finish_names(columns)
        processes, thread_labels = self._finish_threads(columns)
        stream_labels = self._finish_streams(columns)
        memory = self._finish_memory(epoch_ns)
        facts = _make_facts(self, header, epoch_ns, sparse, columns["category"])
        trace = assemble_trace(
            facts=facts,
            notes=(),
            columns=columns,
            names=names,
            processes=processes,
            thread_labels=thread_labels,
            stream_labels=stream_labels,
            memory=memory,
            sparse=sparse,
        )
        trace.notes = (*self.notes, *judge_columns(trace))
        return trace

    def _finish_sparse(self) -> dict[str, SparseColumn]:
        sparse: dict[str, SparseColumn] = {}
        for fact in list(self.sparse):
            rows, values = (column.finish() for column in self.sparse.pop(fact))
            table: Sequence[str] = ()
            if fact in self.tables:
                raw_texts = [raw for raw, number in self.tables.pop(fact).items() if number >= 0]
                offset = len(_EMPTY_TEXTS)
                numbers, table = merge_equal(map(_readable, raw_texts))
                values = numbers[values - offset]
            elif values.dtype == np.int64 and len(values) and values.min() >= -(2**31) and values.max() < 2**31:
                values = values.astype(np.int32)
            sparse[fact] = SparseColumn(rows=rows, values=values, table=table)
        return sparse

    def _drop_wrong_times(
        self, columns: dict[str, NDArray[Any]], sparse: dict[str, SparseColumn]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, SparseColumn]]:
        """Without the events at time 0 of a clock that is far from 0, whose real time is unknown, and without device
        events that are an hour or more outside the host's events, if most are not: CUPTI gave them in another clock."""
        start_ns, is_device = columns["start_ns"], np.isin(columns["category"], _ON_DEVICE)
        zero = start_ns == 0
        zero &= bool((start_ns[~zero] >= _HOUR_NS).all() and not zero.all())
        host_ns = start_ns[~zero & ~is_device]
        wrong = is_device & ~zero
        if len(host_ns):
            wrong &= (start_ns < host_ns.min() - _HOUR_NS) | (start_ns > host_ns.max() + _HOUR_NS)
        if 2 * int(wrong.sum()) >= int((is_device & ~zero).sum()):
            wrong[:] = False
        for mask, code, message in (
            (zero, "zero-times", "events at time 0 were left out: their time is unknown."),
            (wrong, "impossible-times", "device events are an hour or more before or after all host events and were "
    "left out: their times are of another clock."),
        ):  # fmt: skip
            if mask.any():
                count = int(mask.sum())
                self._note("warning", code, f"{count:,} {message}", count)
        keep = ~(zero | wrong)
        return (columns, sparse) if keep.all() else _keep(keep, columns, sparse)

    def _finish_names(self, columns: dict[str, NDArray[Any]]) -> list[str]:
        numbers, names = merge_equal("" if name is None else str(name) for name in self.names)
        if len(names) < len(numbers):
            columns["name"] = numbers[columns["name"]]
        called = np.array([name.startswith(_ANNOTATION_NAMES) for name in names], dtype=bool)
        if called.any():
            operators = columns["category"] == Category.CPU_OP
            columns["category"][operators & called[columns["name"]]] = Category.ANNOTATION
        return names

    def _finish_threads(self, columns: dict[str, NDArray[Any]]) -> tuple[list[str], list[str]]:
        keys = [(_label(pid), _label(tid)) for pid, tid in self.threads]
        numbers, threads = merge_equal(keys)
        if len(threads) < len(keys):
            columns["thread"] = numbers[columns["thread"]]
        process_of, processes = merge_equal(pid for pid, _ in threads)
        columns["process"] = process_of[columns["thread"]] if len(process_of) else np.empty(0, dtype=np.int32)
        return processes, [tid for _, tid in threads]

    def _finish_streams(self, columns: dict[str, NDArray[Any]]) -> list[str]:
        keys = [(device, _label(stream)) for device, stream in self.streams]
        numbers, streams = merge_equal(keys)
        unknown = [at for at, (_, label) in enumerate(streams) if label in _NO_STREAM]
        known = [at for at in range(len(streams)) if at not in unknown]
        final = np.full(len(streams) + 1, -1, dtype=np.int32)
        final[known] = np.arange(len(known))
        place = np.append(final[numbers], np.int32(-1))
        columns["stream"] = place[columns["stream"]]  # -1 picks the last one
        return [streams[at][1] for at in known]

    def _finish_memory(self, epoch_ns: int) -> MemoryEvents | None:
        if not self.memory:
            return None
        columns = dict(zip(_MEMORY_COLUMNS, map(np.concatenate, zip(*self.memory, strict=True)), strict=True))
        order = np.argsort(columns["time_ns"], kind="stable")
        ordered: dict[str, Any] = {name: values[order] for name, values in columns.items()}
        ordered["time_ns"] -= epoch_ns
        return MemoryEvents(**ordered | {name: ordered[name].astype(np.int32) for name in _MEMORY_COLUMNS[-2:]})


def _keep(
    keep: NDArray[np.bool_], columns: dict[str, NDArray[Any]], sparse: dict[str, SparseColumn]
) -> tuple[dict[str, NDArray[Any]], dict[str, SparseColumn]]:
    """The chosen events alone."""
    place = np.cumsum(keep) - 1
    kept = {
        fact: SparseColumn(
            rows=place[column.rows[keep[column.rows]]], values=column.values[keep[column.rows]], table=column.table
        )
        for fact, column in sparse.items()
    }
    return {name: values[keep] for name, values in columns.items()}, kept


_LEFT_OUT: Mapping[str, tuple[str, str]] = {
    "lost-events": ("error", "events were damaged and are not in any figure."),
    "wrong-times": ("warning", "events without a usable time were left out."),
    "no-duration": ("warning", "events without a duration were left out."),
    "negative-duration": ("warning", "events end before they begin and were left out."),
    "damaged-args": ("warning", "events lost their arguments (ids, streams)."),
    "texts-left-out": (
        "info",
        "texts (shapes, stacks) were left out because there are too many different ones.",
    ),
}
"""Level and words of the note, by its code."""
_MEMORY_COLUMNS = (
    "time_ns", "address", "bytes", "allocated_bytes", "reserved_bytes", "device_type", "device_index",
)  # fmt: skip
_NO_STREAM = frozenset({"", "-1", "4294967295", "18446744073709551615"})
"""CUPTI's values for no stream in particular, -1 of three widths."""
_INSTANTS = frozenset({"i", "I", "N"})
_NO_ARGS = Raw(b"{}")
_EMPTY_TEXTS = (b"", b'""', b"null", b"[]")
"""Raw texts without content. They come first in every table, as -1."""
_STRUCTS = (_CallArgs, _HostArgs, _DeviceArgs, _MemoryArgs)
_DECODERS: Mapping[type[Any], Callable[[bytes], list[Any]]] = {
    one: msgspec.json.Decoder(list[one]).decode  # type: ignore[valid-type]
    for one in _STRUCTS
}
_DECODERS_OF_ONE: Mapping[type[Any], Callable[[Any], Any]] = {one: msgspec.json.Decoder(one).decode for one in _STRUCTS}


def _take_integers(values: list[Any], attribute: str, unknown: int) -> Int64s:
    """One int64 per value; ``unknown`` if it is missing or not an integer."""
    column = map(attrgetter(attribute), values)
    try:
        return np.fromiter(column, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        integers = [_read_integer(getattr(value, attribute)) for value in values]
    return np.array([unknown if integer == UNKNOWN else integer for integer in integers], dtype=np.int64)


def _read_integer(value: Any) -> int:
    """The integer, in the range of int64, or UNKNOWN. Unsigned 64-bit numbers wrap, as their writer's would."""
    if isinstance(value, str):
        text = value.strip()
        if len(text) > 32 or re.fullmatch(r"-?[0-9]+|0[xX][0-9a-fA-F]+", text) is None:
            return UNKNOWN
        value = int(text, 16) if text[:2] in ("0x", "0X") else int(text)
    if not isinstance(value, int) or isinstance(value, bool):
        return UNKNOWN
    if 2**63 <= value < 2**64:
        value -= 2**64
    return value if -(2**63) < value < 2**63 else UNKNOWN


def _take_numbers(values: list[Any], attribute: str) -> NDArray[np.float64]:
    column = map(attrgetter(attribute), values)
    try:
        return np.fromiter(column, dtype=np.float64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_read_number(getattr(value, attribute)) for value in values], dtype=np.float64)


def _read_number(value: Any) -> float:
    try:
        return float(value) if value is not None else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _positive_or_unknown(values: Int64s) -> Int64s:
    """CUPTI and Kineto count ids from 1; 0 is their 'none'."""
    return np.where(values > 0, values, -1)


def _readable(raw: bytes) -> str:
    """A JSON text as people read it: a string without its quotes, anything else without spaces."""
    try:
        value = msgspec.json.decode(raw)
    except DAMAGE:
        return raw.decode("utf-8", "replace")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _label(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)


# The header


def _read_header(windows: ChromeEvents, reader: _Reader) -> dict[str, Any]:
    """What the file says about itself; a header that cannot be read is noted."""
    header = windows.read_header()
    if header is None:
        message = "The beginning of the file is damaged; rank and devices are unknown."
        reader._note("warning", "damaged-header", message)
    return header or {}


def _make_facts(
    reader: _Reader,
    header: Mapping[str, Any],
    epoch_ns: int,
    sparse: Mapping[str, SparseColumn],
    category: NDArray[Any],
) -> TraceFacts:
    distributed = header.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    rank = _small_integer(distributed.get("rank"))
    world_size = _small_integer(distributed.get("world_size"))
    return TraceFacts(
        source=reader.file_name,
        format="kineto",
        rank=rank,
        rank_source="unknown" if rank is None else "distributedInfo",
        world_size=world_size,
        host=_short_text(header.get("host_name")),
        time_unit_ns=1 if reader.has_fraction else 1000,
        epoch_ns=epoch_ns,
        unix_base_ns=_time(header.get("baseTimeNanoseconds")),
        devices=_read_devices(header),
        process_groups=_read_process_groups(distributed.get("pg_config"), world_size),
        has_shapes="shapes" in sparse,
        has_stacks=bool((category == Category.PYTHON).any()) or "call_stack" in sparse,
        has_sync=bool((category == Category.SYNC).any()),
    )


def _small_integer(value: Any) -> int | None:
    number = _read_integer(value)
    return number if 0 <= number < 2**31 else None


def _time(value: Any) -> int | None:
    number = _read_integer(value)
    return number if number > 0 else None


def _short_text(value: Any) -> str | None:
    return value[:_MAX_EXTRA_TEXT] if isinstance(value, str) and value else None


def _read_devices(header: Mapping[str, Any]) -> tuple[DeviceFacts, ...]:
    listed = header.get("deviceProperties")
    devices = []
    for at, device in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(device, dict):
            continue
        name = _short_text(device.get("name"))
        index = _small_integer(device.get("id"))
        devices.append(
            DeviceFacts(
                index=at if index is None else index,
                name=name,
                sm_count=_small_integer(device.get("numSms")),
                total_bytes=_time(device.get("totalGlobalMem")),
            )
        )
    return tuple(devices)


def _read_process_groups(listed: Any, world_size: int | None) -> dict[str, tuple[int, ...]]:
    """By name. An empty list of ranks means all of them if the group is as large as the job."""
    groups: dict[str, tuple[int, ...]] = {}
    if isinstance(listed, dict):
        listed = [{"pg_name": name, **group} for name, group in listed.items() if isinstance(group, dict)]
    for group in listed if isinstance(listed, list) else ():
        if not isinstance(group, dict) or not isinstance(group.get("pg_name"), (str, int)):
            continue
        ranks = group.get("ranks")
        members = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
        if not members and world_size and world_size <= 1 << 20 and _small_integer(group.get("pg_size")) == world_size:
            members = tuple(range(world_size))
        groups[str(group["pg_name"])] = members
    return groups


_LOOKS_LIKE_TRACE = re.compile(rb'"(?:traceEvents|schemaVersion|deviceProperties|ph)"\s*:')


def _sniff(head: bytes) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] in (b"{", b"[") and _LOOKS_LIKE_TRACE.search(text) is not None


KINETO = TraceFormat(
    id="kineto",
    suffixes=(".json", ".json.gz", ".trace", ".trace.gz"),
    sniff=_sniff,
    read=read_kineto,
)
