"""plan: whether it fits, what holds the memory, time and cost where they were planned, and what would save memory."""

from __future__ import annotations

from hotloop.core.findings import Value
from hotloop.core.planning import (
    PLAN_SCHEMA,
    PlannedOption,
    PlannedSearch,
    PlanReport,
    Remedy,
    plan_from_json,
    plan_to_json,
)
from hotloop.report.document import Bar, Bars, Block, Document, Facts, Paragraph, Section, Stripe, Table, write
from hotloop.report.renderer import Surface
from hotloop.report.text import clean, format_bytes, format_count, format_duration, format_number, format_percent
from hotloop.report.view import View

REMEDIES_COUNT = 8
"""That are listed; the JSON holds all."""


def describe_plan(report: PlanReport, surface: Surface) -> Document:
    memory = report.memory
    need, room = format_bytes(memory.peak_bytes), format_bytes(memory.capacity_bytes)
    device = f"{format_count(report.gpus)} x {clean(report.device)}"
    if not report.fits:
        title, tone = f"does not fit: {need} of {room} on each of {device}", "high"
    elif memory.is_tight:
        title, tone = f"fits narrowly: {need} of {room} on each of {device}", "medium"
    else:
        title, tone = f"fits: {need} of {room} on each of {device}", "good"
    sections = [Section(title="Memory of the device that needs most", blocks=_describe_memory(report))]
    if report.step is not None:
        sections.append(Section(title="Time", blocks=_describe_time(report)))
    if report.cost is not None:
        sections.append(Section(title="Cost", blocks=_describe_cost(report)))
    if report.scaling:
        sections.append(Section(title="Scaling", blocks=_describe_scaling(report)))
    if report.search is not None:
        sections.append(Section(title=f"Best by {report.search.goal}", blocks=_describe_search(report.search)))
    if report.remedies:
        sections.append(Section(title="What would save memory", blocks=_describe_remedies(report.remedies)))
    return Document(
        kind="plan",
        subject=report,
        data=lambda: plan_to_json(report),
        version=report.tool_version,
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
            f"{format_count(report.tokens_per_step)} tokens a step: micro-batch {run.get('micro_batch')} x "
            f"{report.micro_batches} x {report.data_ranks} data-parallel ranks"
        )
    return " · ".join(parts)


def _describe_params(params: int) -> str:
    return f"{format_number(params / 1e9)}B" if params >= 1e8 else f"{format_number(params / 1e6)}M"


def _describe_memory(report: PlanReport) -> tuple[Block, ...]:
    memory = report.memory
    parts = [
        ("parameters", memory.params_bytes, "memory.states"),
        ("master weights", memory.master_bytes, "memory.states"),
        ("gradients", memory.gradients_bytes, "memory.states"),
        ("optimizer states", memory.optimizer_bytes, "memory.states"),
        ("activations", memory.activations_bytes, "memory.activations"),
        ("logits and loss", memory.logits_bytes, "memory.activations"),
        ("buffers", memory.buffers_bytes, "memory.activations"),
        ("context and fragmentation", memory.context_bytes, "memory.context"),
    ]
    shown = [(name, size, basis) for name, size, basis in parts if size]
    capacity = memory.capacity_bytes
    layer = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.layer_parts_bytes.items() if size)
    left = format_bytes(abs(capacity - memory.peak_bytes))
    return (
        Stripe(
            parts=tuple(
                (
                    name,
                    size / max(capacity, memory.peak_bytes),
                    format_bytes(size),
                    format_percent(size / capacity),
                    True,
                )
                for name, size, _ in shown
            )
        ),
        Bars(
            title="",
            rows=tuple(
                Bar(label=name, value=float(size), shown=f"{format_bytes(size)}  {report.basis.get(basis, '')}")
                for name, size, basis in shown
            ),
        ),
        _paragraph(
            f"peak in the {memory.when}, {left} {'left' if report.fits else 'too much'}; {_describe_error(report)}"
        ),
        *(
            (_paragraph(f"one layer keeps {format_bytes(memory.layer_bytes)} of one micro-batch: {layer}"),)
            if memory.layer_bytes
            else ()
        ),
        *(_paragraph(note) for note in report.notes),
    )


def _describe_error(report: PlanReport) -> str:
    error = format_percent(report.memory.error_ratio)
    if report.is_traced:
        return f"traces of eight models came within {error} of what their real steps on a CPU allocated"
    return f"forecasts of published runs that were not fitted were wrong by at most {error} in 90% of cases"


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
        f"four of five published steps of this kind of device that were not fitted lie within {format_percent(width)} "
        "of their forecast (docs/plan-accuracy.md)"
    )
    return Facts(items=tuple(facts)), _paragraph(lines), Bars(title="", rows=bars), _paragraph(earned)


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
    )


def _describe_scaling(report: PlanReport) -> tuple[Block, ...]:
    rows = tuple(
        (
            format_count(one.gpus),
            format_count(one.global_batch),
            format_duration(one.step_ns),
            format_number(one.tokens_per_s),
            format_percent(one.efficiency_ratio),
            format_number(one.hours),
            _dollars(one.usd),
        )
        for one in report.scaling
    )
    header = ("devices", "global batch", "step", "tokens/s", "efficiency", "hours", "USD")
    return (Table(header=header, rows=rows, left=frozenset(), shrinks=False),)


def _describe_search(found: PlannedSearch) -> tuple[Block, ...]:
    counted = f"{found.fitting:,} of {found.tried:,} configurations fit"
    blocks: list[Block] = [_paragraph(counted), _tabulate_options(found.options)]
    if len(found.front) > 1:
        blocks += [_paragraph("none is both quicker and cheaper than these:"), _tabulate_options(found.front)]
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


PLAN = View(id="plan", type=PlanReport, schema=PLAN_SCHEMA, describe=describe_plan, read=plan_from_json)
