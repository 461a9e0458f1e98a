"""trace: what a profiler's files show, beyond what every run's report has -> tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hotloop.core.findings import Value, Where
from hotloop.core.memory_snapshot import MemoryFile
from hotloop.core.report import Report
from hotloop.core.timeline import DevicePartition, IdleCauses, LaunchStats, RankTimeline
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.show.report import text as t
from hotloop.show.report.document import Section, Table

NAME_LENGTH = 72
SHOWN_RANKS = 64
SHOWN_STEPS = 12


def describe_trace(report: Report, top: int) -> tuple[Section, ...]:
    """Tables of the files that a report was made from; none for a recorded run. ``top`` rows of the long ones."""
    if report.trace is None:
        return tuple(one for file in report.memory_files for one in _list_memory_file(file, top) if one.blocks)
    ranks = report.trace.ranks
    lead = ranks[0].timeline
    whose = "" if len(ranks) == 1 else f"{_name_rank(ranks[0])} only; every rank is in the JSON report"
    made = [_list_files(ranks), _list_steps(lead, whose), _list_device(ranks)]
    if lead.idle is not None:
        made += [
            _list_idle(lead.idle, _describe_span(lead, whose)),
            _list_worst_step(lead, whose),
            _list_blame(lead.idle, whose, top),
        ]
    if lead.launch is not None:
        made.append(_list_launches(lead.launch, whose))
    made.append(_list_waits(report.trace))
    made += [_list_path(ranks[0], whose, top), _list_forecasts(ranks[0], whose), _list_asked(report.trace)]
    made += [_list_memory(ranks), _list_memory_categories(ranks[0], whose), _list_memory_ops(ranks[0], whose, top)]
    made += [_list_kernels(lead, whose, top), _list_comm(lead, whose, top), _list_ops(lead, whose, top)]
    made += [_list_modules(lead, whose, top), _list_ranges(lead, whose, top), _list_ratios(lead, whose)]
    return tuple(one for one in made if one is not None and one.blocks)


def _describe_span(line: RankTimeline, whose: str) -> str:
    """Says that a table counts more than the steps, where the rules judge those alone."""
    if line.in_steps is None:
        return whose
    inside = f"{t.format_share(line.in_steps.idle.idle_ns / max(1, line.in_steps.partition.window_ns))}"
    text = f"entire trace; in the {t.format_counted(line.in_steps.steps_count, 'step')} it idles {inside}"
    return _join(text, whose)


def _list_files(ranks: Sequence[TraceRank]) -> Section:
    rows = []
    for one in ranks[:SHOWN_RANKS]:
        facts, line = one.facts, one.timeline
        device = facts.devices[0].name if facts.devices else None
        steps = f"{len(line.steps)} ({line.step_source})" if line.step_source != "whole trace" else "none"
        rank = "-" if facts.rank is None else f"{facts.rank} ({facts.rank_source})"
        rows.append((facts.source, rank, device or None, steps, sum(d.gpu_events for d in line.devices)))
    note = "" if len(ranks) <= SHOWN_RANKS else f"the first {SHOWN_RANKS} of {len(ranks)}"
    return _section(
        "Files", note, {"file": "long", "rank": "", "device": "", "steps": "", "device events": "count"}, rows
    )


PARTS = {"compute": "share", "exposed comm": "share", "exposed copies": "share", "idle": "share"}


def _share_parts(part: DevicePartition) -> list[float]:
    parts = (part.compute_ns, part.exposed_comm_ns, part.exposed_mem_ns, part.idle_ns)
    return [part_ns / max(1, part.window_ns) for part_ns in parts]


def _list_steps(line: RankTimeline, whose: str) -> Section | None:
    if line.step_source == "whole trace":
        return None
    rows: list[list[Value]] = []
    for step in line.steps[:SHOWN_STEPS]:
        part = step.partition
        mark = " (to its last event)" if step.is_tail_inclusive and part is not None else ""
        mark += "" if step.is_complete else " (cut by the recording)"
        cells: list[Value] = ["-"] * 5 if part is None else [part.window_ns, *_share_parts(part)]
        rows.append([f"{step.index}{mark}", step.host_ns, *cells])
    cut = f"the first {SHOWN_STEPS} of {len(line.steps)}" if len(line.steps) > SHOWN_STEPS else ""
    return _section("Steps", _join(cut, whose), {"step": "", "host": "ns", "device": "ns", **PARTS}, rows)


def _list_device(ranks: Sequence[TraceRank]) -> Section:
    rows = [
        [
            f"{_name_rank(one)}, device {device.device}",
            device.partition.window_ns,
            *_share_parts(device.partition),
            device.partition.overlap_ratio,
        ]
        for one in ranks[:SHOWN_RANKS]
        for device in one.timeline.devices
    ]
    note = "entire trace; the parts add up exactly to each device's own window"
    return _section("Devices", note, {"device": "long", "window": "ns", **PARTS, "comm hidden": "share"}, rows)


def _list_idle(idle: IdleCauses, whose: str) -> Section:
    causes = (
        ("the host waited for the device first (sync-drained)", idle.sync_drained_ns, idle.sync_drained_count),
        ("the next launch came late (launch-late)", idle.launch_late_ns, idle.launch_late_count),
        ("including waiting for the next batch", idle.late_data_wait_ns, ""),
        ("including garbage collection", idle.late_gc_ns, ""),
        ("including the allocator", idle.late_allocator_ns, ""),
        ("queued in time, but had to wait (queue-dependent)", idle.queue_dependent_ns, idle.queue_dependent_count),
        ("including waiting for communication", idle.queue_comm_ns, ""),
        ("including waiting for an event on another stream", idle.queue_event_ns, ""),
        ("including waiting inside a graph", idle.queue_graph_ns, ""),
        ("including waiting for an unknown reason", idle.queue_untold_ns, ""),
        ("launch latency (< 10 µs)", idle.launch_latency_ns, idle.launch_latency_count),
        ("unknown: the launch is not in the trace", idle.unknown_ns, idle.unknown_count),
    )
    rows = [(name, ns, ns / max(1, idle.idle_ns), count) for name, ns, count in causes if ns]
    columns = {"cause": "", "time": "ns", "share": "share", "gaps": "count"}
    return _section("Why the device idles", whose, columns, rows)


def _list_worst_step(line: RankTimeline, whose: str) -> Section | None:
    """The step that idles most, next to the median of all complete ones; none where it hardly differs."""
    known = [(step, step.idle) for step in line.steps if step.idle is not None and not step.is_tail_inclusive]
    if line.step_source == "whole trace" or len(known) < 3:
        return None
    worst, idle = max(known, key=lambda one: one[1].idle_ns)
    middle = round(statistics.median(one.idle_ns for _, one in known))
    if idle.idle_ns * 4 < middle * 5:
        return None
    causes = {
        "sync-drained": "sync_drained_ns",
        "launch-late": "launch_late_ns",
        "including waiting for the next batch": "late_data_wait_ns",
        "queue-dependent": "queue_dependent_ns",
        "launch latency": "launch_latency_ns",
        "unknown": "unknown_ns",
    }
    rows = []
    for name, key in causes.items():
        mine, usual = getattr(idle, key), round(statistics.median(getattr(one, key) for _, one in known))
        if mine:
            rows.append((name, mine, mine / max(1, idle.idle_ns), usual))
    blame = idle.blamed_python or idle.blamed
    text = "" if blame is None else f"; the host was mostly in {_cut(blame.name)} ({t.format_duration(blame.total_ns)})"
    note = f"step {worst.index} idles {t.format_duration(idle.idle_ns)}, the median {t.format_duration(middle)}{text}"
    columns = {"cause": "", "time": "ns", "share": "share", "median step": "ns"}
    return _section("The step that idles most", _join(note, whose), columns, rows)


def _list_blame(idle: IdleCauses, whose: str, top: int) -> Section:
    blamed = (*idle.blamed_python[: top // 2], *idle.blamed[:top])
    rows = [(row.name, row.kind, row.cause, row.total_ns, row.gaps_count) for row in blamed]
    columns = {"what the host did meanwhile": "", "kind": "", "cause": "", "idle time": "ns", "gaps": "count"}
    return _section("What the device waited for", whose, columns, rows)


def _list_launches(launch: LaunchStats, whose: str) -> Section:
    rows = [
        ("kernels", t.format_count(launch.kernels_count)),
        ("kernels under 10 µs (launch-bound index)", _percent(launch.short_kernels_ratio)),
    ]
    return _section("Launches", whose, {"measure": "long", "value": ""}, [row for row in rows if row[1] is not None])


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else t.format_percent(ratio)


def _list_waits(trace: TraceAnalysis) -> Section | None:
    span_ns = trace.span_ns
    if not trace.waits or not span_ns:
        return None
    rows = [
        (f"rank {one.rank}", one.wait_ns, one.wait_ns / span_ns, one.last_arrivals_count)
        for one in trace.waits[:SHOWN_RANKS]
    ]
    collectives = t.format_counted(trace.matched_count, "collective")
    note = f"{collectives} that all ranks share; shares of the time from the first to the last collective"
    columns = {"rank": "", "waits": "ns", "share": "share", "arrived last": "count"}
    return _section("Waiting for other ranks", note, columns, rows)


INFERRED = "waits are inferred, because the trace has no synchronization events"


def _list_path(rank: TraceRank, whose: str, top: int) -> Section | None:
    path = rank.path
    if path is None:
        return None
    total = max(1, sum(path.bound_ns.values()))
    parts = [(_words(kind), ns) for kind, ns in path.bound_ns.items() if ns]
    parts += [(f"including {_cut(name)} ({_words(kind)})", ns) for name, kind, ns in path.parts[: top // 2]]
    note = _join(f"step {path.step}, paced by the {path.paced_by}", "" if path.has_sync_events else INFERRED, whose)
    rows = [(t.clean(name), t.format_duration(ns), ns / total) for name, ns in parts]
    return _section("Critical path", note, {"bound by": "long", "time": "", "share": "share"}, rows)


def _list_forecasts(rank: TraceRank, whose: str) -> Section:
    rows = [
        (change, rank.step_ns * (1 - one.saving_mid_ratio), one.saving_mid_ratio)
        for change, one in rank.forecasts.items()
    ]
    note = _join(f"a step of {t.format_duration(rank.step_ns)}, replayed", whose)
    return _section("What if", note, {"change": "long", "step": "ns", "saves": "ratio"}, rows)


def _list_asked(trace: TraceAnalysis) -> Section | None:
    if not trace.what_if:
        return None
    several = len({one.source for one in trace.what_if}) > 1
    rows = [
        (
            " + ".join(one.changes) + (f" (rank {one.rank})" if several else ""),
            one.step_ns,
            f"{t.format_duration(one.low_step_ns)} – {t.format_duration(one.high_step_ns)}",
            one.saving_mid_ratio,
            one.bound_by,
            one.basis,
            f"{one.inferred_edges} of {one.edges_count}",
        )
        for one in trace.what_if[:SHOWN_RANKS]
    ]
    first = trace.what_if[0]
    note = (
        f"measured step {t.format_duration(first.measured_step_ns)},"
        f" replayed {t.format_duration(first.replayed_step_ns)}"
        f" (mean of {first.steps_count} steps around the median step); "
    ) + "; ".join(dict.fromkeys(one.basis_reason for one in trace.what_if))
    columns = {"change": "long", "step": "ns", "range": "", "saves": "ratio"}
    return _section(
        "What if, as requested", note, columns | dict.fromkeys(("then bound by", "basis", "inferred edges"), ""), rows
    )


def _list_memory(ranks: Sequence[TraceRank]) -> Section:
    rows = [
        (
            f"{_name_rank(rank)}, {one.device_type} {max(0, one.device)}",
            one.peak_allocated_bytes,
            one.peak_reserved_bytes,
            one.fragmentation_bytes,
            one.held_at_peak_bytes,
            None if one.growth_bytes_per_step is None else round(one.growth_bytes_per_step),
        )
        for rank in ranks[:SHOWN_RANKS]
        for one in rank.memory
    ]
    relative = any(not one.is_absolute for rank in ranks for one in rank.memory)
    note = "relative to the start of the trace" if relative else ""
    names = ("peak", "reserved then", "not in use then", "allocated during the trace", "growth per step")
    return _section("Memory", note, {"device": "long"} | dict.fromkeys(names, "bytes"), rows)


def _list_memory_file(file: MemoryFile, top: int) -> Iterator[Section]:
    devices, sites = [], []
    for one in file.devices:
        peak = one.peak
        held = (one.reserved_bytes, one.active_bytes, one.fragmentation_bytes)
        blocks = (one.split_bytes, one.largest_free_block_bytes)
        devices.append((f"device {one.device}", None if peak is None else peak.requested_bytes, *held, *blocks))
        # Without recorded events there is no peak: what is in use now is shown instead.
        for site in (one.sites if peak is None else peak.by_site)[:top]:
            sites.append((_name_line(site.where), f"{one.device}", site.bytes, site.count))
    names = ("peak requested", "reserved", "in use", "not in use", "between blocks", "largest free")
    yield _section("Memory", file.source, {"device": ""} | dict.fromkeys(names, "bytes"), devices)
    for one in file.devices:
        if one.peak is not None:
            note = (
                f"{file.source}, device {one.device}; categories are derived from the allocating code and the "
                "lifetime of the memory"
            )
            yield _list_categories(note, one.peak.by_category, one.peak.requested_bytes)
    recorded = all(one.peak is not None for one in file.devices)
    title = "Memory at the peak by line" if recorded else "Memory in use by line"
    yield _section(title, "", {"line": "long", "device": "", "bytes": "bytes", "allocations": "count"}, sites)
    largest = [(_name_line(one.where), f"{one.device}", one.bytes) for one in file.largest_blocks[:top]]
    yield _section("Largest allocations", "", {"line": "long", "device": "", "bytes": "bytes"}, largest)


def _name_line(where: Where | None) -> str:
    return "unknown line" if where is None else f"{t.clean(where.file)}:{where.line}"


def _list_memory_categories(rank: TraceRank, whose: str) -> Section | None:
    if not rank.memory:
        return None
    one = rank.memory[0]
    before_bytes = one.peak_allocated_bytes - one.held_at_peak_bytes
    before = f"{t.format_bytes(before_bytes)} were allocated before the trace" if before_bytes > 0 else ""
    note = _join(f"{one.device_type} {max(0, one.device)}", before, whose)
    return _list_categories(note, one.peak_by_category, one.peak_allocated_bytes)


def _list_categories(note: str, by_category: Mapping[str, int], total_bytes: int) -> Section:
    ordered = sorted(by_category.items(), key=lambda item: (-item[1], item[0]))
    rows = [(_words(name), size, size / max(1, total_bytes)) for name, size in ordered if size]
    columns = {"category": "", "bytes": "bytes", "share": "share"}
    return _section("Memory at the peak by category", note, columns, rows)


def _list_memory_ops(rank: TraceRank, whose: str, top: int) -> Section | None:
    if not rank.memory:
        return None
    held = [one for one in rank.memory[0].ops[:top] if one.at_peak_bytes]
    rows = [(one.name, one.at_peak_bytes, one.allocated_bytes, one.count) for one in held]
    columns = {"operator": "", "held at the peak": "bytes", "allocated": "bytes", "allocations": "count"}
    return _section("Memory at the peak", whose, columns, rows)


def _list_kernels(line: RankTimeline, whose: str, top: int) -> Section:
    total = max(1, sum(d.work_ns for d in line.devices))
    rows = [
        (
            row.name,
            # Rows of one name differ in what marks them as communication.
            f"{row.kind} (by name)" if row.comm_source == "name" else row.kind,
            row.count,
            row.total_ns,
            row.total_ns / total,
            row.mean_ns,
            row.occupancy_ratio,
            "" if row.blocks_per_sm is None else f"{row.blocks_per_sm:.3g}",
        )
        for row in line.kernels[:top]
    ]
    columns = {"kernel": "", "kind": "", "count": "count", "time": "ns", "share": "share", "mean": "ns"}
    columns |= {"occupancy": "share", "blocks/SM": ""}
    return _section("Kernels", whose, columns, rows, drop_blank=True)


def _list_comm(line: RankTimeline, whose: str, top: int) -> Section:
    rows = [(row.name, row.comm_source, row.count, row.total_ns) for row in line.comm_groups[:top]]
    return _section("Communication", whose, {"kernel": "", "identified by": "", "count": "count", "time": "ns"}, rows)


def _list_ops(line: RankTimeline, whose: str, top: int) -> Section:
    rows = []
    for row in line.ops[:top]:
        rate = "" if row.flops is None or not row.device_total_ns else f"{row.flops / row.device_total_ns / 1e3:.3g}"
        name = f"{row.name} {row.shapes}" if row.shapes else row.name
        rows.append((name, row.count, row.host_self_ns, row.device_self_ns, row.device_total_ns, rate))
    columns = {"operator": "", "count": "count", "host self": "ns", "device self": "ns", "device total": "ns"}
    return _section("Operators", whose, columns | {"TFLOP/s": ""}, rows, drop_blank=True)


def _list_modules(line: RankTimeline, whose: str, top: int) -> Section:
    rows = [(row.name, row.count, row.host_total_ns, row.device_total_ns) for row in line.modules[:top]]
    return _section("Modules", whose, {"module": "", "count": "count", "host": "ns", "device": "ns"}, rows)


def _list_ranges(line: RankTimeline, whose: str, top: int) -> Section:
    rows = [(row.name, row.phase or None, row.count, row.total_ns, row.device_ns) for row in line.anatomy.ranges[:top]]
    columns = {"range": "", "phase": "", "count": "count", "host": "ns", "device": "ns"}
    return _section("Ranges of the program", whose, columns, rows)


def _list_ratios(line: RankTimeline, whose: str) -> Section:
    again, whole = line.ratios.recompute_ratio, "window" if line.devices else "step"
    rows = [] if again is None else [(f"computed again in backward over the {whole}", again)]
    return _section("Key ratios", whose, {"ratio": "", "value": "ratio"}, rows)


def _section(
    title: str, note: str, columns: Mapping[str, str], rows: Iterable[Sequence[Value]], *, drop_blank: bool = False
) -> Section:
    """A table under its title, its columns with their units; empty where there are no rows.

    The unit ``long`` is text that is not cut. Columns that nothing is known for may be dropped.
    """
    cells = [[_show(value, unit) for value, unit in zip(row, columns.values(), strict=True)] for row in rows]
    kept = [i for i in range(len(columns)) if not drop_blank or any(row[i] not in ("", t.UNKNOWN) for row in cells)]
    names = list(columns)
    table = Table(header=tuple(names[i] for i in kept), rows=tuple(tuple(row[i] for i in kept) for row in cells))
    return Section(title=title, note=t.clean(note), blocks=(table,) if cells else ())


def _show(value: Value, unit: str) -> str:
    if isinstance(value, str):
        return t.clean(value) if unit == "long" else _cut(value)
    if isinstance(value, int | float):
        return t.format_quantity(value, "" if unit == "count" else unit)
    return t.UNKNOWN


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _name_rank(one: TraceRank) -> str:
    return one.facts.source if one.facts.rank is None else f"rank {one.facts.rank}"


def _cut(name: str) -> str:
    return t.shorten(name, NAME_LENGTH)
