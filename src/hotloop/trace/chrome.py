"""Rows of a trace and tracks of our own -> a Chrome trace, for Perfetto and for hotloop itself.

Events keep their names, threads and exact times: a time is written as the decimal text of its nanoseconds, never
through a float. Everything is text of a JSON string before it is written, so that no name can end the string.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import UsageError
from hotloop.core.output_file import open_whole
from hotloop.core.trace import DEVICE_WORK, Category, DeviceFacts, MemoryEvents, Trace, TraceFacts
from hotloop.core.trace_results import Slice, TraceExcerpt, Track

from .inputs import find_traces, read_trace_file

Int64s = NDArray[np.int64]

OWN_CATEGORY = "hotloop"
"""No profiler's: a reader takes the tracks for no work of the trace."""

MOST_EXACT_NS = 2**52
"""Beyond the double of it a double does not hold every ns; a trace may last as long again."""
BLOCK_ROWS = 8192
"""So many events are in memory as text at a time."""

_OWN_PROCESS = 90_000_000
"""The first pid that is tried for our tracks: no system has one as high."""

_CATEGORY_NAMES: Mapping[Category, str] = {
    Category.OTHER: "other",
    Category.CPU_OP: "cpu_op",
    Category.RUNTIME: "cuda_runtime",
    Category.KERNEL: "kernel",
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
    Category.SYNC: "cuda_sync",
    Category.ANNOTATION: "user_annotation",
    Category.DEVICE_ANNOTATION: "gpu_user_annotation",
    Category.PYTHON: "python_function",
    Category.OVERHEAD: "overhead",
}

_INTEGER_NAMES: Mapping[str, str] = {
    "sequence_number": "Sequence number",
    "forward_thread": "Fwd thread id",
    "python_id": "Python id",
    "python_parent_id": "Python parent id",
    "bytes": "bytes",
    "graph_id": "graph id",
    "graph_node_id": "graph node id",
    "wait_on_stream": "wait_on_stream",
    "wait_on_record_correlation": "wait_on_cuda_event_record_corr_id",
    "group_size": "Group size",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "collective_sequence": "Seq",
    "flops": "kernel_flop",
    "queued_ns": "queued",
}
_NUMBER_NAMES: Mapping[str, tuple[str, float]] = {
    "blocks_per_sm": ("blocks per SM", 1.0),
    "warps_per_sm": ("warps per SM", 1.0),
    "occupancy_ratio": ("est. achieved occupancy %", 100.0),
    "bandwidth_bytes_per_s": ("memory bandwidth (GB/s)", 1e-9),
}
_TEXT_NAMES: Mapping[str, str] = {
    "shapes": "Input Dims",
    "dtypes": "Input type",
    "concrete_inputs": "Concrete Inputs",
    "call_stack": "Call stack",
    "module": "Module Hierarchy",
    "grid": "grid",
    "block": "block",
    "sync_kind": "cuda_sync_kind",
    "collective": "Collective name",
    "process_group": "Process Group Name",
    "process_group_ranks": "Process Group Ranks",
    "dtype": "dtype",
    "kernel_file": "kernel_file",
    "domain": "domain",
}


def write_chrome(
    target: Path, trace: Trace, rows: Int64s, tracks: Iterable[Track], links: tuple[Int64s, Int64s], about: str
) -> None:
    """Write the rows (ascending) and the tracks to ``target``, packed when its name ends with .gz.

    ``links`` are rows of calls and of the device work that they launched, drawn as arrows. The file appears whole or
    not at all. Raises UsageError when it cannot be written.
    """
    try:
        with open_whole(target) as file, _pack(file, target.name) as out:
            for part in _format_file(trace, rows, tracks, links, about):
                out.write(part.encode("ascii"))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


@contextmanager
def _pack(file: BinaryIO, name: str) -> Iterator[Any]:
    if not name.lower().endswith(".gz"):
        yield file
        return
    # Without name and time the same trace gives the same file.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
        yield packed


def _format_file(
    trace: Trace, rows: Int64s, tracks: Iterable[Track], links: tuple[Int64s, Int64s], about: str
) -> Iterator[str]:
    shift_ns = _choose_shift_ns(trace.facts.epoch_ns + (int(trace.start_ns[rows].min()) if len(rows) else 0))
    head = _describe_facts(trace.facts)
    if shift_ns:
        head["baseTimeNanoseconds"] = (trace.facts.unix_base_ns or 0) + shift_ns
    head["exported"] = about
    yield json.dumps(head)[:-1] + ',\n"traceEvents": ['
    separator = "\n"
    clock = _Clock(trace.facts.epoch_ns - shift_ns, trace.facts.time_unit_ns)
    for block in _format_events(trace, rows, tracks, links, clock):
        if block:
            yield separator + ",\n".join(block)
            separator = ",\n"
    yield "\n]}\n"


def _format_events(
    trace: Trace, rows: Int64s, tracks: Iterable[Track], links: tuple[Int64s, Int64s], clock: _Clock
) -> Iterator[list[str]]:
    own = _find_free_process(trace)
    yield _name_processes(trace, own)
    for number, track in enumerate(tracks, start=1):
        yield [_format_meta("thread_name", str(own), str(number), {"name": track.name}), _sort_it(own, number)]
        block = []
        for one in track.slices:
            block.append(_format_slice(one, own, number, clock))
            if len(block) == BLOCK_ROWS:
                yield block
                block = []
        yield block
    for at in range(0, len(rows), BLOCK_ROWS):
        yield _format_rows(trace, rows[at : at + BLOCK_ROWS], clock)
    yield from _format_arrows(trace, links, clock)
    if trace.memory is not None and len(rows):
        yield from _format_memory(trace, trace.memory, rows, clock)


def _choose_shift_ns(first_ns: int) -> int:
    """Whole seconds to take off all times, of which ``first_ns`` is the first, for baseTimeNanoseconds to hold.

    Perfetto multiplies microseconds by 1,000 in a double: times since 1970 come out in steps of 256 ns, so that slices
    overlap that do not, and are dropped.

    >>> _choose_shift_ns(1_712_195_495_519_689_047), _choose_shift_ns(3_743_411_230_047_485)
    (1712195495000000000, 0)
    """
    return first_ns // 1_000_000_000 * 1_000_000_000 if abs(first_ns) > MOST_EXACT_NS else 0


@dataclass(frozen=True, slots=True)
class _Clock:
    epoch_ns: int
    unit_ns: int

    def at(self, time_ns: int) -> str:
        return self.length(self.epoch_ns + time_ns)

    def length(self, duration_ns: int) -> str:
        """Microseconds as decimal text, with as many digits as the source had.

        >>> _Clock(0, 1).length(1_234_005), _Clock(0, 1000).length(7000), _Clock(0, 1).length(-5)
        ('1234.005', '7', '-0.005')
        """
        if self.unit_ns == 1000 and duration_ns % 1000 == 0:
            return str(duration_ns // 1000)
        whole, rest = divmod(abs(duration_ns), 1000)
        return f"{'-' if duration_ns < 0 else ''}{whole}.{rest:03d}"


def _format_slice(one: Slice, process: int, thread: int, clock: _Clock) -> str:
    return (
        f'{{"ph": "X", "cat": "{OWN_CATEGORY}", "name": {json.dumps(one.name)}, "pid": {process}, "tid": {thread}, '
        f'"ts": {clock.at(one.start_ns)}, "dur": {clock.length(one.end_ns - one.start_ns)}, '
        f'"args": {json.dumps(dict(one.args))}}}'
    )


def _format_rows(trace: Trace, rows: Int64s, clock: _Clock) -> list[str]:
    args = _collect_args(trace, rows)
    columns = (rows, trace.start_ns[rows], trace.duration_ns[rows], trace.name[rows], trace.category[rows])
    lines = []
    for at, (row, start_ns, duration_ns, name, category) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        lines.append(
            f'{{"ph": "X", "cat": "{_CATEGORY_NAMES[Category(category)]}", "name": {json.dumps(trace.names[name])}, '
            f'{_place(trace, row)}, "ts": {clock.at(start_ns)}, "dur": {clock.length(duration_ns)}'
            + (f', "args": {json.dumps(args[at])}}}' if args[at] else "}")
        )
    return lines


def _collect_args(trace: Trace, rows: Int64s) -> list[dict[str, Any]]:
    args: list[dict[str, Any]] = [{} for _ in range(len(rows))]
    on_device = np.isin(trace.category[rows], [int(c) for c in (*DEVICE_WORK, Category.SYNC)])
    dense = (
        ("External id", trace.external_id[rows], True),
        ("correlation", trace.correlation[rows], True),
        ("device", trace.device[rows], on_device),
    )
    for name, values, wanted in dense:
        for at in np.flatnonzero((values >= 0) & wanted).tolist():
            args[at][name] = int(values[at])
    for at in np.flatnonzero((trace.stream[rows] >= 0) & on_device).tolist():
        label = trace.stream_labels[int(trace.stream[rows[at]])]
        digits = label.removeprefix("stream ").strip()
        args[at]["stream"] = int(digits) if _is_number(digits) else label
    for fact, key in _INTEGER_NAMES.items():
        for at, value in _find_facts(rows, *trace.integers(fact)):
            args[at][key] = int(value)
    for fact, (key, factor) in _NUMBER_NAMES.items():
        for at, value in _find_facts(rows, *trace.numbers(fact)):
            args[at][key] = float(value) * factor
    for fact, key in _TEXT_NAMES.items():
        holders, indices, table = trace.texts(fact)
        for at, index in _find_facts(rows, holders, indices):
            args[at][key] = table[int(index)]
    return args


def _find_facts(rows: Int64s, holders: Int64s, values: NDArray[Any]) -> Iterator[tuple[int, Any]]:
    """(place in ``rows``, value) of a sparse fact; rows and holders ascend."""
    low, high = np.searchsorted(holders, [rows[0], rows[-1] + 1]) if len(rows) else (0, 0)
    place = np.searchsorted(rows, holders[low:high])
    held = rows[np.minimum(place, len(rows) - 1)] == holders[low:high] if high > low else np.empty(0, dtype=bool)
    yield from zip(place[held].tolist(), values[low:high][held].tolist(), strict=True)


def _format_arrows(trace: Trace, links: tuple[Int64s, Int64s], clock: _Clock) -> Iterator[list[str]]:
    """From each launching call to its work, as torch.profiler draws them."""
    calls, work = (part.tolist() for part in links)
    lines = []
    for number, (call, done) in enumerate(zip(calls, work, strict=True), start=1):
        for phase, row in (("s", call), ("f", done)):
            lines.append(
                f'{{"ph": "{phase}", "id": {number}, "cat": "ac2g", "name": "ac2g", {_place(trace, row)}, '
                f'"ts": {clock.at(int(trace.start_ns[row]))}' + (', "bp": "e"}' if phase == "f" else "}")
            )
        if len(lines) >= BLOCK_ROWS:
            yield lines
            lines = []
    yield lines


def _format_memory(trace: Trace, memory: MemoryEvents, rows: Int64s, clock: _Clock) -> Iterator[list[str]]:
    """The instants of the allocators between the first and the last of the host's rows."""
    host = rows[~np.isin(trace.category[rows], [int(c) for c in DEVICE_WORK])]
    if not len(host):
        return
    low, high = int(trace.start_ns[host].min()), int(trace.start_ns[host].max())
    first, last = np.searchsorted(memory.time_ns, [low, high + 1]).tolist()
    place = _place(trace, int(host[0]))
    names = (
        ("Total Reserved", memory.reserved_bytes, True),
        ("Total Allocated", memory.allocated_bytes, True),
        ("Bytes", memory.bytes, False),
        ("Device Id", memory.device_index, False),
        ("Device Type", memory.device_type, False),
        ("Addr", memory.address, True),
    )
    for begin in range(first, last, BLOCK_ROWS):
        lines = []
        for at in range(begin, min(last, begin + BLOCK_ROWS)):
            args = {key: int(column[at]) for key, column, optional in names if not optional or column[at] >= 0}
            lines.append(
                f'{{"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", {place}, '
                f'"ts": {clock.at(int(memory.time_ns[at]))}, "args": {json.dumps(args)}}}'
            )
        yield lines


def _place(trace: Trace, row: int) -> str:
    process, thread = int(trace.process[row]), int(trace.thread[row])
    pid = _identify(trace.processes[process]) if process >= 0 else '""'
    tid = _identify(trace.thread_labels[thread]) if thread >= 0 else '""'
    return f'"pid": {pid}, "tid": {tid}'


def _identify(label: str) -> str:
    """A pid or tid as the file had it: a number where it is one, else a string.

    A negative one is 32 bits that overflowed, and is written without the sign: Perfetto takes it for the main thread.

    >>> _identify("7"), _identify("stream 7"), _identify("-1029147072")
    ('7', '"stream 7"', '3265820224')
    """
    if not _is_number(label):
        return json.dumps(label)
    return str(int(label) % 2**32) if -(2**31) <= int(label) < 0 else label


def _is_number(label: str) -> bool:
    digits = label.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19 and str(int(label)) == label


def _find_free_process(trace: Trace) -> int:
    taken = set(trace.processes)
    return next(pid for pid in range(_OWN_PROCESS, _OWN_PROCESS + len(taken) + 1) if str(pid) not in taken)


def _name_processes(trace: Trace, own: int) -> list[str]:
    lines = [_format_meta("process_name", str(own), "0", {"name": "hotloop"}), _sort_it(own, None)]
    named = trace.facts.extra.get("process_names")
    for label, name in named.items() if isinstance(named, dict) else ():
        if label in trace.processes:
            lines.append(_format_meta("process_name", _identify(label), "0", {"name": str(name)}))
    for thread, name in trace.facts.threads.items():
        rows = np.flatnonzero(trace.thread == thread)[:1]
        if len(rows) and trace.process[rows[0]] >= 0:
            pid = _identify(trace.processes[int(trace.process[rows[0]])])
            lines.append(_format_meta("thread_name", pid, _identify(trace.thread_labels[thread]), {"name": name}))
    return lines


def _sort_it(process: int, thread: int | None) -> str:
    """Our process above all others, its tracks in their order."""
    kind = "process_sort_index" if thread is None else "thread_sort_index"
    return _format_meta(kind, str(process), str(thread or 0), {"sort_index": -1000 if thread is None else thread})


def _format_meta(kind: str, pid: str, tid: str, args: Mapping[str, Any]) -> str:
    return f'{{"ph": "M", "name": "{kind}", "pid": {pid}, "tid": {tid}, "ts": 0, "args": {json.dumps(dict(args))}}}'


def _describe_facts(facts: TraceFacts) -> dict[str, Any]:
    """The head of the file, under the names that torch.profiler gives its parts."""
    head: dict[str, Any] = {key: value for key, value in facts.extra.items() if isinstance(value, str | int | float)}
    head.pop("traceName", None)
    head["schemaVersion"] = head.get("schemaVersion", 1)
    if facts.devices:
        head["deviceProperties"] = [_describe_device(device) for device in facts.devices]
    # A rank that was guessed from names or their order is no fact of the file.
    rank = facts.rank if facts.rank_source == "distributedInfo" else None
    if rank is not None or facts.world_size is not None:
        distributed: dict[str, Any] = {"backend": facts.backend, "rank": rank, "world_size": facts.world_size}
        if facts.process_groups:
            distributed["pg_config"] = [
                {"pg_name": name, "ranks": list(ranks)} for name, ranks in facts.process_groups.items()
            ]
        head["distributedInfo"] = {key: value for key, value in distributed.items() if value is not None}
    if facts.host is not None:
        head["host_name"] = facts.host
    if facts.unix_base_ns is not None:
        head["baseTimeNanoseconds"] = facts.unix_base_ns
    head["displayTimeUnit"] = "ms"
    return head


def _describe_device(device: DeviceFacts) -> dict[str, Any]:
    lines = {
        "id": device.index,
        "name": device.name,
        "totalGlobalMem": device.total_bytes,
        "computeMajor": device.compute_major,
        "computeMinor": device.compute_minor,
        "numSms": device.sm_count,
        "warpSize": device.warp_size,
        "maxThreadsPerMultiprocessor": device.max_threads_per_sm,
    }
    return {key: value for key, value in lines.items() if value is not None}


def export_steps(
    paths: Sequence[str | Path],
    lead: TraceFacts,
    target: Path,
    draw: Callable[[Trace], TraceExcerpt],
) -> tuple[str, TraceExcerpt]:
    """Write what ``draw`` makes of the lead rank's trace; answers the name of its file and what was written.

    ``lead`` says which of the files that ``paths`` mean it is.
    """
    files = find_traces(paths).files
    file = next((f for f in files if f.source == lead.source), files[0])
    traces = read_trace_file(file)
    trace = next((t for t in traces if t.facts.rank == lead.rank), traces[0])
    excerpt = draw(trace)
    which = f"steps {excerpt.steps[0]} to {excerpt.steps[-1]}" if excerpt.steps else "everything"
    about = f"{which} of {trace.facts.source}, by hotloop"
    write_chrome(target, trace, excerpt.rows, excerpt.tracks, excerpt.links, about)
    return trace.facts.source, excerpt
