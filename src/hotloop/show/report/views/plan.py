"""plan: whether it fits, what holds the memory, time and cost, and what would save memory."""

from __future__ import annotations

from typing import TypeVar

from hotloop.core.findings import Value
from hotloop.core.planning import (
    PLAN_SCHEMA,
    PlannedOption,
    PlannedSearch,
    PlanReport,
    Remedy,
)
from hotloop.core.prediction import CostPrediction
from hotloop.show.report.document import (
    Bar,
    Bars,
    Block,
    Document,
    Paragraph,
    Section,
    Surface,
    Table,
    View,
    write,
)
from hotloop.show.report.text import (
    clean,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_number,
    format_percent,
)

T = TypeVar("T")

CLOSE_PART = 0.5
"""A plan that leaves less than this part of the forecast's error free may as well run out of memory."""
REMEDIES_COUNT = 8
"""That are listed; the JSON holds all."""


def describe_plan(report: PlanReport, surface: Surface) -> Document:
    memory = report.memory
    need, room = format_bytes(memory.peak_bytes), format_bytes(memory.capacity_bytes)
    device = f"{format_count(report.gpus)} x {clean(report.device)}"
    if not report.fits:
        title, tone = f"does not fit: {need} of {room} on each of {device}", "high"
    elif memory.is_tight and memory.margin_ratio < CLOSE_PART * memory.error_ratio:
        error = f"the forecast error may be {format_percent(memory.error_ratio)}"
        title, tone = f"too close to call: {need} of {room} on each of {device}, and {error}", "high"
    elif memory.is_tight:
        title, tone = f"fits narrowly: {need} of {room} on each of {device}", "medium"
    else:
        title, tone = f"fits: {need} of {room} on each of {device}", "good"
    sections = [Section(title="Memory of the device that needs the most", blocks=_describe_memory(report))]
    if report.step is not None:
        sections.append(Section(title="Time", blocks=_describe_time(report)))
    if report.cost is not None:
        sections.append(Section(title="Cost", blocks=_describe_cost(report)))
    if report.search is not None:
        sections.append(Section(title=f"Best by {report.search.goal}", blocks=_describe_search(report.search)))
    if report.remedies:
        sections.append(Section(title="What would save memory", blocks=_describe_remedies(report.remedies)))
    return Document(
        title=title,
        tone=tone,
        lead=(_paragraph(_describe_workload(report)),),
        sections=tuple(sections),
    )


def _paragraph(text: str) -> Paragraph:
    return Paragraph(text=write(text), indent=0, hang=2)


def _describe_workload(report: PlanReport) -> str:
    run = report.run
    axes = " ".join(f"{name}={run[name]}" for name in ("tp", "pp", "cp", "ep") if run.get(name, 1) != 1)
    parts = [
        f"{clean(report.name)}: {_describe_params(report.params)} parameters",
        f"{run.get('precision')}, {run.get('sharding')}{f', {axes}' if axes else ''}, recompute {run.get('recompute')}",
    ]
    if report.tokens_per_step is None:
        parts.append(f"batch {clean(str(run.get('batch')))} on each of {report.data_ranks} data-parallel ranks")
    else:
        parts.append(
            f"{format_count(report.tokens_per_step)} tokens per step: micro-batch {run.get('micro_batch')} x "
            f"{report.micro_batches} x {report.data_ranks} data-parallel ranks"
        )
    return " · ".join(parts)


def _describe_params(params: int) -> str:
    return f"{format_number(params / 1e9)}B" if params >= 1e8 else f"{format_number(params / 1e6)}M"


def _describe_memory(report: PlanReport) -> tuple[Block, ...]:
    memory = report.memory
    parts = (
        ("parameters", memory.params_bytes, "memory.states"),
        ("master weights", memory.master_bytes, "memory.states"),
        ("gradients", memory.gradients_bytes, "memory.states"),
        ("optimizer states", memory.optimizer_bytes, "memory.states"),
        ("activations", memory.activations_bytes, "memory.activations"),
        ("logits and loss", memory.logits_bytes, "memory.activations"),
        ("buffers", memory.buffers_bytes, "memory.activations"),
        ("context and fragmentation", memory.context_bytes, "memory.context"),
    )
    bars = tuple(
        Bar(label=name, value=float(size), shown=f"{format_bytes(size)}  {report.basis.get(basis, '')}")
        for name, size, basis in parts
        if size
    )
    layer = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.layer_parts_bytes.items() if size)
    left = format_bytes(abs(memory.capacity_bytes - memory.peak_bytes))
    notes = [f"peak in the {memory.when}, {left} {'left' if report.fits else 'too much'}; {_describe_error(report)}"]
    if memory.layer_bytes:
        notes.append(f"one layer keeps {format_bytes(memory.layer_bytes)} of one micro-batch: {layer}")
    return Bars(title="", rows=bars), *(_paragraph(note) for note in (*notes, *report.notes))


def _describe_error(report: PlanReport) -> str:
    error = format_percent(report.memory.error_ratio)
    if report.is_traced:
        return f"traced memory of eight models was within {error} of what their real steps on a CPU allocated"
    return f"forecasts for published runs that were not used for fitting were wrong by at most {error} in 90% of cases"


def _describe_time(report: PlanReport) -> tuple[Block, ...]:
    step = report.step
    assert step is not None
    facts = [
        ("step", format_duration(step.mid_ns), f"{format_duration(step.low_ns)} to {format_duration(step.high_ns)}"),
        ("tokens/s per device", format_number(report.tokens_per_s_per_gpu or 0), report.basis.get("step", "")),
    ]
    facts += [
        (name, format_percent(ratio), "")
        for name, ratio in (("MFU", report.mfu_ratio), ("HFU", report.hfu_ratio))
        if ratio is not None
    ]
    parts = (
        ("compute", step.compute_ns),
        ("exposed communication", step.exposed_ns),
        ("pipeline bubble", step.bubble_ns),
        ("optimizer", step.optimizer_ns),
        ("offload", step.offload_ns),
    )
    lines = " · ".join(f"{name} {value}{f' ({note})' if note else ''}" for name, value, note in facts)
    bars = tuple(Bar(label=name, value=ns, shown=format_duration(ns)) for name, ns in parts if ns)
    width = step.high_ns / step.mid_ns - 1
    earned = (
        "four of five published step times on this kind of device that were not used for fitting are within "
        f"{format_percent(width)} of their forecast (docs/plan-accuracy.md)"
    )
    return _paragraph(lines), Bars(title="", rows=bars), _paragraph(earned)


def _describe_cost(report: PlanReport) -> tuple[Block, ...]:
    cost = report.cost
    assert cost is not None
    money = "price unknown" if cost.usd is None else f"{cost.usd:,.0f} USD ({clean(cost.price)})"
    energy = "" if cost.energy_kwh is None else f" · {cost.energy_kwh:,.0f} kWh"
    return (
        _paragraph(
            f"{cost.tokens:,} tokens: {format_number(cost.hours)} h, {format_number(cost.gpu_hours)} device hours · "
            f"{money}{energy}"
        ),
        *_describe_interruptions(cost),
        *(_paragraph(note) for note in cost.notes),
    )


def _describe_interruptions(cost: CostPrediction) -> tuple[Block, ...]:
    held = cost.checkpoint
    if held is None or cost.mtbf_s is None:
        return ()
    every = "" if cost.interval_steps is None else f", one every {format_counted(cost.interval_steps, 'step')} is best"
    stall = ""
    if held.stall_s is not None and cost.stall_per_step_ns is not None:
        share = f"{format_duration(cost.stall_per_step_ns)} per step"
        stall = f", stops training for {format_duration(held.stall_s * 1e9)} ({share})"
    writers = (
        "written by one rank"
        if held.ranks == 1
        else f"{format_bytes(held.rank_bytes)} written by each of {format_count(held.ranks)} ranks"
    )
    return (
        _paragraph(
            f"an interruption every {format_duration(cost.mtbf_s * 1e9)}; {format_percent(cost.waste_ratio)} of the "
            "time goes to checkpoints, restarts and repeated computation (formula, Daly 2006)"
        ),
        _paragraph(f"a checkpoint holds {format_bytes(held.total_bytes)}, {writers}{stall}{every}"),
    )


def _describe_search(found: PlannedSearch) -> tuple[Block, ...]:
    counted = f"{found.fitting:,} of {found.tried:,} configurations fit"
    blocks: list[Block] = [_paragraph(counted), _tabulate_options(found.options)]
    if len(found.front) > 1:
        blocks += [_paragraph("no other option is both faster and cheaper than these:"), _tabulate_options(found.front)]
    return tuple(blocks)


def _tabulate_options(options: tuple[PlannedOption, ...]) -> Table:
    rows = tuple(
        (
            f"{format_count(one.gpus)} x {clean(one.device)}",
            ", ".join(f"{key} = {_word(value)}" for key, value in one.changes.items()),
            format_bytes(one.peak_bytes),
            format_duration(one.step_ns),
            format_percent(one.mfu_ratio),
            format_number(one.hours),
            _dollars(one.usd),
        )
        for one in options
    )
    header = ("devices", "run", "peak", "step", "MFU", "hours", "USD")
    return Table(header=header, rows=rows, left=frozenset({0, 1}), shrinks=False)


def _dollars(usd: float | None) -> str:
    return "unknown" if usd is None else f"{usd:,.0f}"


def _describe_remedies(remedies: tuple[Remedy, ...]) -> tuple[Block, ...]:
    rows = tuple(
        (
            one.id,
            ", ".join(f"{key.removeprefix('run.')} = {_word(value)}" for key, value in one.changes.items()),
            format_bytes(one.saved_bytes),
            format_bytes(one.peak_bytes),
            "yes" if one.fits else "no",
            "unknown" if one.slower_ratio is None else f"{round(100 * one.slower_ratio):+d}%",
            one.numerics,
        )
        for one in remedies[:REMEDIES_COUNT]
    )
    header = ("remedy", "change", "saves", "peak", "fits", "time per token", "numerics")
    return (Table(header=header, rows=rows, left=frozenset({0, 1, 4, 6}), shrinks=False),)


def _word(value: Value) -> str:
    """As the workload file writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


PLAN = View(id="plan", type=PlanReport, schema=PLAN_SCHEMA, describe=describe_plan)
