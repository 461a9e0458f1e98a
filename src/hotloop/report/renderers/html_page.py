"""html: the Report as one page that needs no network, no server and no trust in the names that it shows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotloop.core.errors import InvariantError
from hotloop.core.findings import Finding, Kind
from hotloop.core.phases import PHASES, Excluded
from hotloop.core.report import Device, LineShare, MemorySummary, Overhead, Report, StepSummary, report_to_json
from hotloop.report import text as t
from hotloop.report.goals import goal_tables, plot_points
from hotloop.report.manual import manual_to_html, split_manual
from hotloop.report.quality import NOTE, draw_quality
from hotloop.report.renderer import Surface, renderer
from hotloop.report.static_page import hash_source, read_asset
from hotloop.report.tables import trace_tables
from hotloop.report.tuning import describe_notes, tune_tables

LINES_PER_PHASE = 3
LARGE_PHASE_RATIO = 0.10
HEAT_LEVELS = 10

Shown = dict[str, Any]
"""Display strings for the template; nothing in it is computed with again."""


@renderer("html", "one self-contained page", suffix=".html")
def render_html(report: Report, surface: Surface) -> str:
    """The report as an HTML document.

    Names from the user's program reach the page in three ways only: as text escaped by jinja2, as text of a manual
    escaped by manual_to_html, and as JSON in a data block in which ``<``, ``>`` and ``&`` are written as \\u escapes.
    """
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    def show(value: Any) -> Any:
        return value if isinstance(value, Markup) or not isinstance(value, str) else t.clean(value)

    environment = Environment(
        loader=DictLoader({name: read_asset("templates", name) for name in ("report.html.j2", "pareto.html.j2")}),
        autoescape=True,
        finalize=show,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, script = read_asset("static", "report.css"), read_asset("static", "report.js")
    policy = (
        f"default-src 'none'; script-src {hash_source(script)}; style-src {hash_source(css)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    return environment.get_template("report.html.j2").render(
        _describe_report(report, surface.folder)
        | {
            "tables": trace_tables(report, max(50, surface.top)),
            "tuning": _describe_tuning(report),
            "policy": Markup(policy),
            "css": Markup(css),
            "script": Markup(script),
            "data": Markup(_embed_json(report)),
            "manuals": {
                rule: [Markup(manual_to_html(part)) for part in split_manual(manual, "What to do")]
                for rule, manual in surface.manuals.items()
                if any(finding.rule == rule for finding in report.findings)
            },
        }
    )


def _describe_tuning(report: Report) -> Shown | None:
    if report.tune is None:
        return None
    from markupsafe import Markup

    return {
        "baseline": report.verdict,
        "goal": report.tune.goal,
        "file": report.tune.strategy_file,
        "tables": (*goal_tables(report.tune), *tune_tables(report.tune, report.breakdown)),
        "plot": plot_points(report.tune.pareto),
        "reasons": [(trial.id, trial.reason, str(trial.quality.get("reason", ""))) for trial in report.tune.trials],
        "notes": describe_notes(report.tune),
        "quality_note": NOTE,
        "plots": [
            {"title": plot.title, "status": plot.status, "reason": plot.reason, "svg": Markup(plot.svg)}
            for trial in report.tune.trials
            for plot in draw_quality(trial)
        ],
    }


def _embed_json(report: Report) -> str:
    """The report's JSON with every character escaped that HTML could read as markup."""
    try:
        # The tables of a trace stand on the page; the script draws none of them.
        data = json.dumps(report_to_json(replace(report, trace=None)), allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise InvariantError(f"the report holds a number that is not finite: {error}") from error
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return data


def _describe_report(report: Report, folder: str) -> Shown:
    training_seen = report.outcome is None or report.outcome.training_seen
    history = t.format_history(report.forecast_history)
    combined = report.combined_saving
    return {
        "version": report.tool_version,
        "command": shlex.join(report.command),
        "verdict": report.verdict if report.tune is None else report.tune.verdict,
        "training_seen": training_seen,
        "outcome": t.format_outcome(report.outcome) if report.outcome is not None else None,
        "ended_badly": report.outcome is not None
        and (report.outcome.ended not in ("completed", "running") or bool(report.outcome.exit_code)),
        "tone": _tone(report),
        "stake": t.describe_stake(report.findings),
        "findings": [_describe_finding(number, f, folder) for number, f in enumerate(report.findings, 1)],
        "history": history,
        "combined": {
            "range": t.format_range(combined.low_ratio, combined.high_ratio),
            "mid": t.format_percent(combined.mid_ratio),
            "techniques": combined.techniques,
        }
        if combined is not None and len(combined.techniques) > 1
        else None,
        "facts": _describe_steps(report.step) + _describe_memory(report.memory, t.describe_shared_memory(report)),
        "phases": _describe_phases(report, folder),
        "run": _describe_run(report.step.excluded) if report.step is not None else None,
        "exchange_note": t.describe_hidden_exchange(report),
        "device": _describe_device(report.device),
        "device_phases": [
            {
                "name": p.phase,
                "device": t.format_duration(p.device_mean_ns),
                "host": t.format_duration(p.host_mean_ns),
                "steps": t.format_count(p.steps_count),
            }
            for p in report.device_phases
        ],
        "device_phases_note": t.DEVICE_PHASES_NOTE,
        "has_timeline": any(timeline.first_step for timeline in report.timelines),
        "heat": _describe_heat(report, _phases_in_use(report)),
        "heat_phases": _phases_in_use(report),
        "several_ranks": len(report.ranks) > 1,
        "scorecard": [
            {
                "name": r.name,
                "value": t.format_percent(r.measured_ratio),
                "good": r.good,
                "bad": r.bad,
                "verdict": r.verdict,
                "band": t.format_band_verdict(r),
            }
            for r in report.scorecard
        ],
        "skipped": _group_skipped(report),
        "health": report.health,
        "overhead": _describe_overhead(report.overhead),
        "environment": [
            (name, t.UNKNOWN if value is None else str(value)) for name, value in report.environment.items()
        ],
        "runs": [
            {"verdict": r.verdict, "steps": t.format_counted(r.step.count, "step") if r.step else None}
            for r in report.runs
        ],
        "run_folder": report.run_folder,
        "next": report.next_command,
    }


def _tone(report: Report) -> str:
    """How grave the verdict looks: the severity of the first fault that costs something, else 'good'."""
    grave = (f.severity.value for f in report.findings if f.kind is Kind.FAULT and f.severity.value != "info")
    return next(grave, "good")


def _describe_finding(number: int, finding: Finding, folder: str) -> Shown:
    saving = finding.saving
    evidence = [t.format_evidence(name, value) for name, value in finding.evidence.items()]
    return {
        "number": number,
        "rule": finding.rule,
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "title": finding.title,
        "cost": t.format_duration(finding.cost_ns) if finding.cost_ns is not None else None,
        "cost_share": t.format_percent(finding.cost_ratio) if finding.cost_ratio is not None else None,
        "cost_base": t.cost_base(finding),
        "no_forecast": t.describe_no_forecast(finding),
        "forecast": t.describe_forecast(finding),
        "bar": {
            "low": f"{saving.low_ratio * 100:.2f}%",
            "width": f"{(saving.high_ratio - saving.low_ratio) * 100:.2f}%",
            "mid": f"{saving.mid_ratio * 100:.2f}%",
            "cost": f"{(finding.cost_ratio or 0.0) * 100:.2f}%",
        }
        if saving is not None
        else None,
        "where": [(t.below_folder(t.format_where(where), folder), where.function) for where in finding.where],
        "ranks": ", ".join(map(str, finding.ranks)),
        "evidence": [pair for pair in evidence if pair is not None],
        "fix": t.format_fix(finding.fix) if finding.fix is not None else None,
        "act": _describe_act(finding),
        "next": finding.next,
    }


def _describe_act(finding: Finding) -> Any:
    """What a reader does for the finding's fix, where it is done by hand."""
    from markupsafe import Markup

    by_hand = "" if finding.fix is None else finding.fix.by_hand
    return Markup(manual_to_html(by_hand)) if by_hand else None


def _describe_steps(step: StepSummary | None) -> list[tuple[str, str, str]]:
    """Facts as (name, value, note); what was not measured is left out."""
    if step is None:
        return []
    facts = [
        ("mean step", t.format_duration(step.mean_ns), f"median {t.format_duration(step.median_ns)}"),
        ("p95 step", t.format_duration(step.p95_ns), _optional("spread (cv)", step.cv_ratio)),
        ("steps", t.format_count(step.count), f"{t.format_count(step.steady_count)} of them steady"),
    ]
    rates = ((step.samples_per_s, "samples"), (step.tokens_per_s, "tokens"), (step.batches_per_s, "batches"))
    facts.extend((f"{noun} per second", t.format_number(value), "") for value, noun in rates if value is not None)
    if step.time_to_first_step_ns is not None:
        facts.append(("first step done after", t.format_duration(step.time_to_first_step_ns), ""))
    return facts


def _describe_run(left_out: Excluded | None) -> Shown | None:
    """The whole life of the lead process as parts of one bar."""
    if left_out is None:
        return None
    steady = (("steady steps", left_out.run_ns - left_out.total_ns),)
    before = (("before the first step", left_out.startup_ns),) if left_out.startup_ns else ()
    parts = t.excluded_parts(left_out)
    at = 1 if left_out.warmup_ns else 0
    told = [*before, *parts[:at], *steady, *parts[at:]]
    all_ns = sum(ns for _, ns in told)
    rows, start = [], 0.0
    for name, part_ns in told:
        share = part_ns / all_ns
        rows.append(
            {
                "name": name,
                "x": f"{start * 100:.3f}%",
                "width": f"{share * 100:.3f}%",
                "is_steady": name == "steady steps",
                "time": t.format_duration(part_ns),
                "share": "" if (name, part_ns) in before else t.format_share(part_ns / left_out.run_ns),
            }
        )
        start += share
    return {"parts": rows, "total": t.format_duration(all_ns), "note": t.describe_excluded(left_out)}


def _optional(name: str, ratio: float | None) -> str:
    return f"{name} {t.format_percent(ratio)}" if ratio is not None else ""


def _describe_memory(memory: MemorySummary | None, shared: str | None) -> list[tuple[str, str, str]]:
    if memory is None or memory.peak_bytes is None:
        return []
    note = f"of {t.format_bytes(memory.total_bytes)}" if memory.total_bytes is not None else ""
    note = "; ".join(filter(None, (note, shared)))
    facts = [("peak memory", t.format_bytes(memory.peak_bytes), note)]
    if memory.reserved_bytes is not None:
        allocated = f"allocated {t.format_bytes(memory.allocated_bytes)}" if memory.allocated_bytes is not None else ""
        facts.append(("reserved", t.format_bytes(memory.reserved_bytes), allocated))
    if memory.growth_bytes_per_step is not None:
        facts.append(("memory growth", t.format_bytes(memory.growth_bytes_per_step), "per step"))
    return facts


def _describe_phases(report: Report, folder: str) -> list[Shown]:
    if report.breakdown is None:
        return []
    shown = []
    for name in PHASES:
        stats = report.breakdown.phases[name]
        large = stats.share_ratio >= LARGE_PHASE_RATIO
        times = (stats.mean_ns, stats.std_ns, stats.min_ns, stats.median_ns, stats.p95_ns, stats.p99_ns, stats.max_ns)
        shown.append(
            {
                "name": name,
                "share": t.format_share(stats.share_ratio),
                "width": f"{stats.share_ratio * 100:.2f}%",
                "times": [t.format_duration(value) for value in times],
                "lines": [_describe_line(line, folder) for line in report.lines if line.phase == name][:LINES_PER_PHASE]
                if large
                else [],
            }
        )
    return shown


def _describe_line(line: LineShare, folder: str) -> Shown:
    place = f"{t.below_folder(line.file, folder)}:{line.line}"
    return {"place": place, "function": line.function, "share": t.format_percent(line.share_ratio)}


def _describe_device(device: Device | None) -> Shown | None:
    if device is None:
        return None
    parts = [(name, getattr(device, name)) for name in ("compute", "exposed_comm", "exposed_mem", "idle")]
    return {
        "parts": [
            {
                "name": name,
                "share": t.format_share(part.share_ratio),
                "width": f"{part.share_ratio * 100:.2f}%",
                "total": t.format_duration(part.total_ns),
            }
            for name, part in parts
        ],
        "busy": None if device.busy_ratio is None else t.format_percent(device.busy_ratio),
    }


def _phases_in_use(report: Report) -> list[str]:
    breakdowns = [rank.breakdown for rank in report.ranks if rank.breakdown is not None]
    return [name for name in PHASES if any(breakdown.share(name) > 0 for breakdown in breakdowns)]


def _describe_heat(report: Report, phases: list[str]) -> list[Shown]:
    """One row a rank; ``level`` 0..9 is the cell's shade, by share of that rank's own steps."""
    rows = []
    for rank in report.ranks:
        cells: list[Shown] = []
        for name in phases:
            if rank.breakdown is None:
                cells.append({"level": "none", "share": t.UNKNOWN, "time": ""})
                continue
            share = rank.breakdown.share(name)
            level = min(HEAT_LEVELS - 1, int(share * HEAT_LEVELS)) if share else "zero"
            cells.append(
                {
                    "level": level,
                    "share": t.format_share(share),
                    "time": t.format_duration(rank.breakdown.mean_ns(name)),
                }
            )
        named_in = [f.rule for f in report.findings if rank.rank is not None and rank.rank in f.ranks]
        rows.append(
            {
                "rank": str(rank.rank) if rank.rank is not None else f"pid {rank.pid}",
                "host": rank.host,
                "steps": t.format_counted(rank.steps, "step"),
                "mean": t.format_duration(rank.mean_ns),
                "cells": cells,
                "named_in": ", ".join(named_in),
                "ended": t.OUTCOME_TEXT.get(rank.ended, rank.ended) if rank.ended is not None else t.UNKNOWN,
                "lost_rows": t.format_counted(rank.lost_rows, "row") if rank.lost_rows else "",
                "memory": t.format_bytes(rank.memory.peak_bytes),
            }
        )
    return rows


def _group_skipped(report: Report) -> Mapping[str, list[str]]:
    by_reason: dict[str, list[str]] = {}
    for skipped in report.skipped:
        by_reason.setdefault(skipped.reason, []).append(skipped.rule)
    return by_reason


def _describe_overhead(overhead: Overhead | None) -> Shown | None:
    if overhead is None:
        return None
    known = (
        ("hooks", overhead.hooks_ns),
        ("sampler", overhead.sampler_ns),
        ("deep window", overhead.deep_window_ns),
    )
    rows = [(name, t.format_duration(value)) for name, value in known]
    rows.append(("memory", t.format_bytes(overhead.memory_bytes)))
    return {"share": t.format_percent(overhead.share_ratio), "rows": rows, "method": overhead.method}
