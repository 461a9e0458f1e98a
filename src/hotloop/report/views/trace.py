"""trace: what a profiler's files show, beyond what every run's report has -> tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from hotloop.core.memory_snapshot import MemoryFile
from hotloop.core.report import Report
from hotloop.core.timeline import IdleCauses, KernelRow, LaunchStats, RankTimeline, TensorCores
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.report import text as t
from hotloop.report.document import Section, Table

NAME_LENGTH = 72
SHOWN_RANKS = 64
SHOWN_STEPS = 12

Cells = tuple[tuple[str, ...], ...]


def describe_trace(report: Report, top: int) -> tuple[Section, ...]:
    """Tables of the files that a report was made from; none for a recorded run. ``top`` rows of the long ones."""
    if report.trace is None:
        return tuple(one for file in report.memory_files for one in _list_memory_file(file, top) if one.blocks)
    ranks = report.trace.ranks
    lead = ranks[0].timeline
    whose = "" if len(ranks) == 1 else f"of {_name_rank(ranks[0])}; the JSON report has every rank"
    made = [_list_files(ranks), _list_steps(lead, whose), _list_device(ranks)]
    if lead.idle is not None:
        made += [
            _list_idle(lead.idle, _describe_span(lead, whose)),
            _list_worst_step(lead, whose),
            _list_blame(lead.idle, whose, top),
        ]
    if lead.launch is not None:
        made.append(_list_launches(lead.launch, whose))
    made += [_list_waits(report), _list_ranks_path(report.trace)]
    made += [_list_path(ranks[0], whose, top), _list_forecasts(ranks[0], whose), _list_asked(report.trace)]
    made += [_list_memory(ranks), _list_memory_categories(ranks[0], whose), _list_memory_ops(ranks[0], whose, top)]
    made += [_list_kernels(lead, whose, top), _list_comm(lead, whose, top), _list_ops(lead, whose, top)]
    made += [_list_modules(lead, whose, top), _list_ranges(lead, whose, top), _list_ratios(lead, whose)]
    return tuple(one for one in made if one is not None and one.blocks)


def _describe_span(line: RankTimeline, whose: str) -> str:
    """Says that a table counts more than the complete steps, where the rules judge those alone."""
    if line.in_steps is None:
        return whose
    inside = f"{t.format_share(line.in_steps.idle.idle_ns / max(1, line.in_steps.partition.window_ns))}"
    text = f"whole trace; in the {t.format_counted(line.in_steps.steps_count, 'complete step')} it idles {inside}"
    return f"{text}; {whose}" if whose else text


def _list_files(ranks: Sequence[TraceRank]) -> Section:
    rows = []
    for one in ranks[:SHOWN_RANKS]:
        facts, line = one.facts, one.timeline
        device = facts.devices[0].name if facts.devices and facts.devices[0].name else t.UNKNOWN
        events = sum(d.gpu_events for d in line.devices)
        steps = f"{len(line.steps)} ({line.step_source})" if line.step_source != "whole trace" else "none"
        rank = "-" if facts.rank is None else f"{facts.rank} ({facts.rank_source})"
        rows.append((facts.source, rank, device, steps, t.format_count(events)))
    return _section(
        title="Files",
        note="" if len(ranks) <= SHOWN_RANKS else f"the first {SHOWN_RANKS} of {len(ranks)}",
        header=("file", "rank", "device", "steps", "device events"),
        rows=tuple(rows),
    )


def _list_steps(line: RankTimeline, whose: str) -> Section | None:
    if line.step_source == "whole trace":
        return None
    rows = []
    for step in line.steps[:SHOWN_STEPS]:
        part = step.partition
        cells: tuple[str, ...] = ("-",) * 5
        if part is not None:
            parts = (part.compute_ns, part.exposed_comm_ns, part.exposed_mem_ns, part.idle_ns)
            cells = (t.format_duration(part.window_ns), *(t.format_share(p / max(1, part.window_ns)) for p in parts))
        mark = " (to its last event)" if step.is_tail_inclusive and part is not None else ""
        mark += "" if step.is_complete else " (cut by the recording)"
        rows.append((f"{step.index}{mark}", t.format_duration(step.host_ns), *cells))
    cut = f"the first {SHOWN_STEPS} of {len(line.steps)}" if len(line.steps) > SHOWN_STEPS else ""
    return _section(
        title="Steps",
        note="; ".join(x for x in (cut, whose) if x),
        header=("step", "host", "device", "compute", "exposed comm", "exposed copies", "idle"),
        rows=tuple(rows),
    )


def _list_device(ranks: Sequence[TraceRank]) -> Section:
    rows = []
    for one in ranks[:SHOWN_RANKS]:
        for device in one.timeline.devices:
            part = device.partition
            window = max(1, part.window_ns)
            parts = (part.compute_ns, part.exposed_comm_ns, part.exposed_mem_ns, part.idle_ns)
            overlap = t.UNKNOWN if part.overlap_ratio is None else t.format_share(part.overlap_ratio)
            rows.append(
                (
                    f"{_name_rank(one)}, device {device.device}",
                    t.format_duration(part.window_ns),
                    *(t.format_share(p / window) for p in parts),
                    overlap,
                )
            )
    return _section(
        title="Devices",
        note="whole trace; shares of each device's own window, which they sum to exactly",
        header=("device", "window", "compute", "exposed comm", "exposed copies", "idle", "comm hidden"),
        rows=tuple(rows),
    )


def _list_idle(idle: IdleCauses, whose: str) -> Section:
    causes = (
        ("the host had waited for the device (sync-drained)", idle.sync_drained_ns, idle.sync_drained_count),
        ("the next launch came late (launch-late)", idle.launch_late_ns, idle.launch_late_count),
        ("of which waiting for the next batch", idle.late_data_wait_ns, None),
        ("of which garbage collection", idle.late_gc_ns, None),
        ("of which the allocator", idle.late_allocator_ns, None),
        ("queued in time, and waited (queue-dependent)", idle.queue_dependent_ns, idle.queue_dependent_count),
        ("of which for communication", idle.queue_comm_ns, None),
        ("of which for an event of another stream", idle.queue_event_ns, None),
        ("of which inside a graph", idle.queue_graph_ns, None),
        ("of which untold for what", idle.queue_untold_ns, None),
        ("the latency of launching itself (< 10 µs)", idle.launch_latency_ns, idle.launch_latency_count),
        ("unknown: the launch is not in the trace", idle.unknown_ns, idle.unknown_count),
    )
    rows = [
        (name, t.format_duration(ns), t.format_share(ns / max(1, idle.idle_ns)), "" if n is None else t.format_count(n))
        for name, ns, n in causes
        if ns
    ]
    return _section(
        title="Why the device idles", note=whose, header=("cause", "time", "share", "gaps"), rows=tuple(rows)
    )


def _list_worst_step(line: RankTimeline, whose: str) -> Section | None:
    """The step that idles most, beside the median of all complete ones; none where it stands out little."""
    known = [(step, step.idle) for step in line.steps if step.idle is not None and not step.is_tail_inclusive]
    if line.step_source == "whole trace" or len(known) < 3:
        return None
    worst, idle = max(known, key=lambda one: one[1].idle_ns)
    middle = round(statistics.median(one.idle_ns for _, one in known))
    if idle.idle_ns * 4 < middle * 5:
        return None
    causes = (
        ("sync-drained", "sync_drained_ns"),
        ("launch-late", "launch_late_ns"),
        ("of which waiting for the next batch", "late_data_wait_ns"),
        ("queue-dependent", "queue_dependent_ns"),
        ("launch latency", "launch_latency_ns"),
        ("unknown", "unknown_ns"),
    )
    rows = []
    for name, key in causes:
        mine, usual = getattr(idle, key), round(statistics.median(getattr(one, key) for _, one in known))
        if mine:
            share = t.format_share(mine / max(1, idle.idle_ns))
            rows.append((name, t.format_duration(mine), share, t.format_duration(usual)))
    blame = idle.blamed_python or idle.blamed
    text = "" if blame is None else f"; meanwhile mostly {_cut(blame.name)} ({t.format_duration(blame.total_ns)})"
    note = f"step {worst.index} idles {t.format_duration(idle.idle_ns)}, the median {t.format_duration(middle)}{text}"
    return _section(
        title="The step that idles most",
        note="; ".join(x for x in (note, whose) if x),
        header=("cause", "time", "share", "median step"),
        rows=tuple(rows),
    )


def _list_blame(idle: IdleCauses, whose: str, top: int) -> Section:
    rows = tuple(
        (_cut(row.name), row.kind, row.cause, t.format_duration(row.total_ns), t.format_count(row.gaps_count))
        for row in (*idle.blamed_python[: top // 2], *idle.blamed[:top])
    )
    header = ("what the host did meanwhile", "kind", "cause", "idle time", "gaps")
    return _section(title="What the device waited for", note=whose, header=header, rows=rows)


def _list_launches(launch: LaunchStats, whose: str) -> Section:
    rows: list[tuple[str, str]] = [("kernels", t.format_count(launch.kernels_count))]
    if launch.short_kernels_ratio is not None:
        rows.append(("kernels under 10 µs (launch-bound index)", t.format_percent(launch.short_kernels_ratio)))
    if launch.late_idle_ratio is not None:
        rows.append(("idle time that is launch-late", t.format_percent(launch.late_idle_ratio)))
    if launch.delay_from_start is not None:
        rows.append(("launch to start, median", t.format_duration(launch.delay_from_start.median_ns)))
        rows.append(("launch to start, p95", t.format_duration(launch.delay_from_start.p95_ns)))
    for queue in launch.queues[:4]:
        depth = queue.depth_time_ns / queue.span_ns if queue.span_ns else 0.0
        rows.append((f"stream {queue.label}: mean queue", f"{depth:.1f} launches"))
    return _section(title="Launches", note=whose, header=("measure", "value"), rows=tuple(rows))


def _list_waits(report: Report) -> Section | None:
    trace = report.trace
    if trace is None or not trace.waits or not trace.span_ns:
        return None
    span_ns = trace.span_ns
    rows = tuple(
        (
            f"rank {one.rank}",
            t.format_duration(one.wait_ns),
            t.format_share(one.wait_ns / span_ns),
            t.format_count(one.last_arrivals_count),
        )
        for one in trace.waits[:SHOWN_RANKS]
    )
    collectives = t.format_counted(trace.matched_count, "collective")
    note = f"over {collectives} that all ranks share; shares of the time from the first to the last of them"
    return _section(
        title="Waiting for other ranks", note=note, header=("rank", "waits", "share", "arrived last"), rows=rows
    )


def _list_path(rank: TraceRank, whose: str, top: int) -> Section | None:
    path = rank.path
    if path is None:
        return None
    total = max(1, sum(path.bound_ns.values()))
    bound = [(kind.replace("_", " "), ns) for kind, ns in path.bound_ns.items() if ns]
    parts = [(f"of which {_cut(name)} ({kind.replace('_', ' ')})", ns) for name, kind, ns in path.parts[: top // 2]]
    rows = tuple((name, t.format_duration(ns), t.format_share(ns / total)) for name, ns in [*bound, *parts])
    notes = [f"step {path.step}, paced by the {path.paced_by}"]
    if not path.has_sync_events:
        notes.append("without synchronisation events its waits are inferred")
    notes += [whose] if whose else []
    return _section(title="Critical path", note="; ".join(notes), header=("bound by", "time", "share"), rows=rows)


def _list_forecasts(rank: TraceRank, whose: str) -> Section:
    rows = tuple(
        (change, t.format_duration(rank.step_ns * (1 - f.saving_mid_ratio)), t.format_percent(f.saving_mid_ratio))
        for change, f in rank.forecasts.items()
    )
    note = f"a step of {t.format_duration(rank.step_ns)}, re-timed" + (f"; {whose}" if whose else "")
    return _section(title="What if", note=note, header=("change", "step", "saves"), rows=rows)


def _list_asked(trace: TraceAnalysis) -> Section | None:
    if not trace.what_if:
        return None
    several = len({one.source for one in trace.what_if}) > 1
    rows = tuple(
        (
            " + ".join(one.changes) + (f" (rank {one.rank})" if several else ""),
            t.format_duration(one.step_ns),
            f"{t.format_duration(one.low_step_ns)} – {t.format_duration(one.high_step_ns)}",
            t.format_percent(one.saving_mid_ratio),
            one.bound_by,
            one.basis,
            f"{one.inferred_edges} of {one.edges_count}",
        )
        for one in trace.what_if[:SHOWN_RANKS]
    )
    first = trace.what_if[0]
    note = (
        f"measured step {t.format_duration(first.measured_step_ns)},"
        f" replayed {t.format_duration(first.replayed_step_ns)}"
        f" (mean of {first.steps_count} steps around the median one); "
    )
    reasons = dict.fromkeys(one.basis_reason for one in trace.what_if)
    header = ("change", "step", "range", "saves", "then bound by", "basis", "inferred edges")
    return _section(title="What if, as asked", note=note + "; ".join(reasons), header=header, rows=rows)


def _list_ranks_path(trace: TraceAnalysis) -> Section | None:
    path = trace.ranks_path
    if path is None:
        return None
    rows = []
    for one in sorted(path.ranks, key=lambda one: -one.total_ns)[:SHOWN_RANKS]:
        if not one.total_ns:
            continue
        kinds = sorted((kind for kind, ns in one.bound_ns.items() if ns), key=lambda kind: -one.bound_ns[kind])
        bound = ", ".join(f"{k.replace('_', ' ')} {t.format_share(one.bound_ns[k] / one.total_ns)}" for k in kinds[:3])
        share = t.format_share(one.total_ns / max(1, path.total_ns))
        rows.append((f"rank {one.rank}", t.format_duration(one.total_ns), share, bound))
    notes = [f"step {path.step}, {t.format_duration(path.total_ns)} over all ranks"]
    notes.append(f"it changes ranks {t.format_counted(path.changes_count, 'time')}")
    if path.stayed_count:
        notes.append(f"{t.format_counted(path.stayed_count, 'collective')} could not be followed to other ranks")
    if not path.has_sync_events:
        notes.append("without synchronisation events its waits are inferred")
    header = ("on", "time", "share", "bound by")
    return _section(title="Critical path over ranks", note="; ".join(notes), header=header, rows=tuple(rows))


def _list_memory(ranks: Sequence[TraceRank]) -> Section | None:
    rows = []
    for rank in ranks[:SHOWN_RANKS]:
        for one in rank.memory:
            fragmented = one.fragmentation_bytes
            growth = one.growth_bytes_per_step
            rows.append(
                (
                    f"{_name_rank(rank)}, {one.device_type} {max(0, one.device)}",
                    t.format_bytes(one.peak_allocated_bytes),
                    t.UNKNOWN if one.peak_reserved_bytes is None else t.format_bytes(one.peak_reserved_bytes),
                    t.UNKNOWN if fragmented is None else t.format_bytes(fragmented),
                    t.format_bytes(one.held_at_peak_bytes),
                    t.UNKNOWN if growth is None else t.format_bytes(round(growth)),
                )
            )
    relative = any(not one.is_absolute for rank in ranks for one in rank.memory)
    note = "levels are relative to the beginning of the trace" if relative else ""
    header = ("device", "peak", "reserved then", "not in use then", "of the trace's own", "growth per step")
    return _section(title="Memory", note=note, header=header, rows=tuple(rows)) if rows else None


def _list_memory_file(file: MemoryFile, top: int) -> Iterator[Section]:
    devices, sites = [], []
    for one in file.devices:
        peak = one.peak
        devices.append(
            (
                f"device {one.device}",
                t.UNKNOWN if peak is None else t.format_bytes(peak.requested_bytes),
                *map(t.format_bytes, (one.reserved_bytes, one.active_bytes, one.fragmentation_bytes)),
                *map(t.format_bytes, (one.split_bytes, one.largest_free_block_bytes)),
            )
        )
        # Without recorded events there is no peak: what is in use now stands for it.
        for site in (one.sites if peak is None else peak.by_site)[:top]:
            where = "no line is known" if site.where is None else t.format_where(site.where)
            rows = (t.format_bytes(site.bytes), t.UNKNOWN if site.count is None else t.format_count(site.count))
            sites.append((where, f"{one.device}", *rows))
    header = ("device", "peak requested", "reserved", "in use", "not in use", "between blocks", "largest free")
    yield _section(title="Memory", note=file.source, header=header, rows=tuple(devices))
    for one in file.devices:
        if one.peak is not None:
            yield _section(
                title="Memory at the peak by category",
                note=f"{file.source}, device {one.device}; told by what made it and how long it lived",
                header=("category", "bytes", "share"),
                rows=_rank_categories(one.peak.by_category, one.peak.requested_bytes),
            )
    total = max(1, file.peak_bytes or 0)
    yield _section(
        title="Memory by category",
        note=f"{file.source}; peak {t.format_bytes(file.peak_bytes)}",
        header=("category", "at the peak", "share", "its own peak", "at the end"),
        rows=tuple(
            (
                one.category.replace("_", " "),
                t.format_bytes(one.at_peak_bytes),
                t.format_share(one.at_peak_bytes / total),
                t.format_bytes(one.own_peak_bytes),
                t.format_bytes(one.final_bytes),
            )
            for one in file.categories
        ),
    )
    recorded = all(one.peak is not None for one in file.devices)
    title = "Memory at the peak by line" if recorded else "Memory in use by line"
    yield _section(title=title, note="", header=("line", "device", "bytes", "allocations"), rows=tuple(sites))
    yield _section(
        title="Largest allocations",
        note="",
        header=("line", "device", "bytes"),
        rows=tuple(
            (
                "no line is known" if one.where is None else t.format_where(one.where),
                f"{one.device}",
                t.format_bytes(one.bytes),
            )
            for one in file.largest_blocks[:top]
        ),
    )


def _list_memory_categories(rank: TraceRank, whose: str) -> Section | None:
    if not rank.memory:
        return None
    one = rank.memory[0]
    before_bytes = one.peak_allocated_bytes - one.held_at_peak_bytes
    before = f"{t.format_bytes(before_bytes)} were there before the trace" if before_bytes > 0 else ""
    return _section(
        title="Memory at the peak by category",
        note="; ".join(x for x in (f"{one.device_type} {max(0, one.device)}", before, whose) if x),
        header=("category", "bytes", "share"),
        rows=_rank_categories(one.peak_by_category, one.peak_allocated_bytes),
    )


def _rank_categories(by_category: Mapping[str, int], total_bytes: int) -> tuple[tuple[str, ...], ...]:
    ordered = sorted(by_category.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        (name.replace("_", " "), t.format_bytes(size), t.format_share(size / max(1, total_bytes)))
        for name, size in ordered
        if size
    )


def _list_memory_ops(rank: TraceRank, whose: str, top: int) -> Section | None:
    if not rank.memory:
        return None
    rows = tuple(
        (
            _cut(one.name),
            t.format_bytes(one.at_peak_bytes),
            t.format_bytes(one.allocated_bytes),
            t.format_count(one.count),
        )
        for one in rank.memory[0].ops[:top]
        if one.at_peak_bytes
    )
    header = ("operator", "held at the peak", "allocated", "allocations")
    return _section(title="Memory at the peak", note=whose, header=header, rows=rows)


def _list_kernels(line: RankTimeline, whose: str, top: int) -> Section:
    total = max(1, sum(d.work_ns for d in line.devices))
    rows = tuple(
        (
            _cut(row.name),
            # Rows of one name differ in what marks them as communication.
            f"{row.kind} (by name)" if row.comm_source == "name" else row.kind,
            t.format_count(row.count),
            t.format_duration(row.total_ns),
            t.format_share(row.total_ns / total),
            t.format_duration(row.mean_ns),
            t.UNKNOWN if row.occupancy_ratio is None else t.format_share(row.occupancy_ratio),
            "" if row.blocks_per_sm is None else f"{row.blocks_per_sm:.3g}",
            _name_cores(row) if line.tensor_cores is not None else "",
        )
        for row in line.kernels[:top]
    )
    header = ("kernel", "kind", "count", "time", "share", "mean", "occupancy", "blocks/SM", "tensor cores")
    notes = [_describe_tensor_cores(line.tensor_cores)] if line.tensor_cores is not None else []
    note = "; ".join([*notes, whose] if whose else notes)
    return _section(drop_blank=True, title="Kernels", note=note, header=header, rows=rows)


def _name_cores(row: KernelRow) -> str:
    if row.kind != "compute":
        return ""
    return t.UNKNOWN if row.is_tensor_core is None else "yes" if row.is_tensor_core else "no"


def _describe_tensor_cores(cores: TensorCores) -> str:
    """How much of the products' time is on tensor cores, as far as names show."""
    share = t.format_percent(cores.tensor_core_ns / max(1, cores.matrix_ns))
    text = f"of the time in products and convolutions {share} on tensor cores, by the kernels' names"
    unknown = cores.unknown_ns / max(1, cores.matrix_ns)
    return text if unknown < 0.005 else f"{text} ({t.format_percent(unknown)} unknown)"


def _list_comm(line: RankTimeline, whose: str, top: int) -> Section:
    rows = tuple(
        (_cut(g.name), g.comm_source, t.format_count(g.count), t.format_duration(g.total_ns))
        for g in line.comm_groups[:top]
    )
    return _section(title="Communication", note=whose, header=("kernel", "told by", "count", "time"), rows=rows)


def _list_ops(line: RankTimeline, whose: str, top: int) -> Section:
    def list_rows() -> Iterator[tuple[str, ...]]:
        for row in line.ops[:top]:
            rate = (
                "" if row.flops is None or not row.device_total_ns else f"{row.flops / row.device_total_ns / 1e3:.3g}"
            )
            name = _cut(f"{row.name} {row.shapes}" if row.shapes else row.name)
            times = (row.host_self_ns, row.device_self_ns, row.device_total_ns)
            roof = (
                "" if row.roofline is None else f"{t.format_percent(row.roofline.attained_ratio)} {row.roofline.bound}"
            )
            yield (name, t.format_count(row.count), *map(t.format_duration, times), rate, roof)

    header = ("operator", "count", "host self", "device self", "device total", "TFLOP/s", "of the roof")
    return _section(drop_blank=True, title="Operators", note=whose, header=header, rows=tuple(list_rows()))


def _list_modules(line: RankTimeline, whose: str, top: int) -> Section:
    rows = tuple(
        (_cut(row.name), t.format_count(row.count), *map(t.format_duration, (row.host_total_ns, row.device_total_ns)))
        for row in line.modules[:top]
    )
    return _section(title="Modules", note=whose, header=("module", "count", "host", "device"), rows=rows)


def _list_ranges(line: RankTimeline, whose: str, top: int) -> Section:
    rows = tuple(
        (
            _cut(row.name),
            row.phase or t.UNKNOWN,
            t.format_count(row.count),
            *map(t.format_duration, (row.total_ns, row.device_ns)),
        )
        for row in line.anatomy.ranges[:top]
    )
    return _section(
        title="Ranges of the program", note=whose, header=("range", "phase", "count", "host", "device"), rows=rows
    )


def _list_ratios(line: RankTimeline, whose: str) -> Section:
    ratios = line.ratios
    known = (
        ("all-reduce (waits for ranks included) over backward", ratios.allreduce_over_backward_ratio),
        ("copies to the device over the window", ratios.h2d_ratio),
        ("copies from the device over the window", ratios.d2h_ratio),
        ("waiting for data over the step", ratios.data_wait_ratio),
        (f"computed again in backward over the {'window' if line.devices else 'step'}", ratios.recompute_ratio),
    )
    rows = tuple((name, t.format_percent(value)) for name, value in known if value is not None)
    return _section(title="Key ratios", note=whose, header=("ratio", "value"), rows=rows)


def _section(*, title: str, note: str, header: tuple[str, ...], rows: Cells, drop_blank: bool = False) -> Section:
    """A table under its title; empty where there are no rows. Columns that nothing is known for may be dropped."""
    kept = [i for i in range(len(header)) if not drop_blank or any(row[i] not in ("", t.UNKNOWN) for row in rows)]
    table = Table(
        header=tuple(header[i] for i in kept), rows=tuple(tuple(t.clean(row[i]) for i in kept) for row in rows)
    )
    return Section(title=title, note=t.clean(note), blocks=(table,) if rows else ())


def _name_rank(one: TraceRank) -> str:
    return one.facts.source if one.facts.rank is None else f"rank {one.facts.rank}"


def _cut(name: str) -> str:
    return t.shorten(name, NAME_LENGTH)
