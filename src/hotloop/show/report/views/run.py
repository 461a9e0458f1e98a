"""run: the report of a training or of a profiler's files -> its document; a tuning comes before its baseline's."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from hotloop.core.findings import Kind, Severity, Skipped
from hotloop.core.hosts import Attempt, HostClock
from hotloop.core.phases import PHASES, Excluded
from hotloop.core.report import SCHEMA, Outcome, RankSummary, Report, ScorecardRow, StepSummary
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.show.report.document import (
    Block,
    Cell,
    Detail,
    Document,
    Paragraph,
    Place,
    Section,
    Share,
    Shares,
    Span,
    StepChart,
    Surface,
    Table,
    View,
    write,
)
from hotloop.show.report.findings import describe_findings, describe_stake
from hotloop.show.report.text import (
    UNKNOWN,
    below_folder,
    clean,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_percent,
    format_rate,
    format_share,
    format_utilization,
    shorten,
)
from hotloop.show.report.views.trace import describe_trace
from hotloop.show.report.views.tune import describe_tuning

LARGE_PHASE_RATIO = 0.10
"""Phases from this share on show the lines of user code that they belong to."""
LINES_PER_PHASE = 3
SHOWN_RANKS = 16
"""More ranks than this are cut to those that findings name and the first ones; JSON and HTML hold them all."""
TIME, TRACE, TRUST = "Where the time goes", "The trace", "How far to trust this"
LEVEL_TONE = {"error": "high", "warning": "fair", "bad": "bad", "fair": "fair", "good": "good"}

DEVICE_PHASES_NOTE = (
    "mean per step between device events around each phase; includes device waits, and the remainder of a step is "
    "not idle time"
)


EXCHANGE_RULES = frozenset({"exposed-communication", "slow-link", "small-buckets", "sync-every-microstep", "straggler"})
"""Rules about waiting for other ranks."""


NO_NEWS = "training ran on the CPU"
"""How the reasons of rules begin that only an accelerator's training can break."""


SHOWN_REASONS = 4
"""More reasons for not judging than this are counted; JSON and HTML hold them all."""


OUTCOME_TEXT = {
    "completed": "completed",
    "exception": "ended by an uncaught exception",
    "signal": "ended by a signal",
    "killed": "killed",
    "oom": "ran out of memory",
    "running": "still running",
    "unknown": "how it ended is unknown",
}


SILENT_TEXT = "no end was recorded: killed, or crashed"
SHOWN_SILENT = 3
SHOWN_HOSTS = 4
"""Clocks of more hosts are counted; the JSON report lists them all."""
TOLD_RATIO = 0.1
"""A phase that is at least this share of the tail is named; two phases at most."""


def format_bands(row: ScorecardRow) -> str:
    """The bands of a scorecard's row, where guides give them; otherwise, why nothing was measured.

    >>> format_bands(ScorecardRow(name="x", measured_ratio=0.1, good="below 10%", bad="", verdict="good"))
    'good below 10%'
    """
    if row.reason:
        return clean(row.reason)
    return ", ".join(f"{name} {clean(band)}" for name, band in (("good", row.good), ("bad", row.bad)) if band)


def format_band_verdict(row: ScorecardRow) -> str:
    """The band that a measure falls in; guides have none for some measures."""
    return "–" if row.measured_ratio is not None and not (row.good or row.bad) else clean(row.verdict)


def describe_shared_memory(report: Report) -> str | None:
    """What a peak of host memory sums over; None where it is of one process or of an accelerator."""
    memory, hosts = report.memory, [rank.host for rank in report.ranks]
    if (
        memory is None
        or memory.peak_bytes is None
        or memory.allocated_bytes is not None
        or len(hosts) == len(set(hosts))
    ):
        return None
    return "all processes of one host together: the sum of their peaks"


def excluded_parts(left_out: Excluded) -> list[tuple[str, int]]:
    """The parts of the run outside of steady steps as (name, ns), in order of time, without parts that took no time.

    What is neither warm-up nor tail belongs to steps that were recorded operator by operator, or to lost rows.
    """
    first = "first step" if left_out.warmup_count == 1 else f"first {format_counted(left_out.warmup_count, 'step')}"
    later = f"{format_counted(left_out.later_count, 'profiled step')}" if left_out.later_count else "lost rows"
    told = [
        one for one in left_out.tail_phase_ns.items() if one[0] != "other" and one[1] >= TOLD_RATIO * left_out.tail_ns
    ]
    largest = sorted(told, key=lambda one: -one[1])[:2]
    what = ", ".join(f"{name.replace('_', ' ')} {format_duration(ns)}" for name, ns in largest)
    parts = [
        (first, left_out.warmup_ns),
        (later, left_out.later_ns),
        (f"after the last step{f' ({what})' if what else ''}", left_out.tail_ns),
    ]
    return [(name, ns) for name, ns in parts if ns]


def describe_excluded(left_out: Excluded | None) -> str | None:
    """The parts of the run outside of steady steps; None where they are unknown.

    >>> describe_excluded(Excluded(
    ...     count=3, total_ns=3_000_000_000, ratio=0.75, warmup_count=3, warmup_ns=2_000_000_000, later_count=0,
    ...     later_ns=0, tail_ns=1_000_000_000, startup_ns=None, compile_ns=0,
    ...     phase_ns={"input_wait": 1_500_000_000, "other": 1},
    ... ))
    'left out: first 3 steps, 2.00 s, 50% of the run, most of it input wait; after the last step, 1.00 s, 25%'
    """
    if left_out is None or not left_out.total_ns:
        return None
    parts = [
        f"{name}, {format_duration(ns)}, {format_percent(ns / left_out.run_ns)}"
        for name, ns in excluded_parts(left_out)
    ]
    most = f", most of it {left_out.main_part}" if left_out.main_part is not None else ""
    return f"left out: {parts[0]} of the run{most if left_out.count else ''}" + "".join(
        f"; {part}" for part in parts[1:]
    )


def describe_restarts(attempts: Sequence[Attempt]) -> str | None:
    """The share of the run in attempts before the last one; None without any.

    >>> first = Attempt(restart=0, world_size=2, ranks_count=2, hosts=("a",), steps=40, first_step=0,
    ...     trained_ns=4_000_000_000)
    >>> describe_restarts((first, replace(first, first_step=30, gap_ns=9_000_000_000, repeated_steps=10,
    ...     repeated_ns=1_000_000_000)))
    'left out: attempt 1, 40 steps of 2 ranks, 4.00 s; 9.00 s to attempt 2, which repeated 10 steps, 1.00 s'
    """
    if len(attempts) < 2:
        return None
    parts = []
    for number, (one, then) in enumerate(pairwise(attempts), 1):
        made = f"{format_counted(one.steps, 'step')} of {format_counted(one.world_size, 'rank')}"
        parts.append(f"attempt {number}, {made}, {format_duration(one.trained_ns)}")
        gap = UNKNOWN if then.gap_ns is None else format_duration(then.gap_ns)
        again = f", which repeated {format_counted(then.repeated_steps, 'step')}" if then.repeated_steps else ""
        lost = f", {format_duration(then.repeated_ns)}" if again and then.repeated_ns is not None else ""
        parts.append(f"{gap} to attempt {number + 1}{again}{lost}")
    return f"left out: {'; '.join(parts)}"


def describe_clocks(hosts: Sequence[HostClock]) -> str | None:
    """How far the hosts' clocks are apart; None with fewer than two hosts.

    >>> host = HostClock(name="a", ranks=(0,), offset_ns=0, drift_ppm=None, uncertainty_ns=0, basis="the reference")
    >>> describe_clocks((host, replace(host, name="b", offset_ns=3 * 10**9, drift_ppm=50.1, uncertainty_ns=80_000,
    ...     basis="ends of 90 steps that both share")))
    "clocks against a's: b +3.000000 s ± 80.0 µs, drift +50.1 ppm (ends of 90 steps that both share)"
    """
    if len(hosts) < 2:
        return None
    parts = []
    for one in hosts[1:]:
        if one.offset_ns is None or one.uncertainty_ns is None:
            parts.append(f"{clean(one.name)} unknown: {clean(one.basis)}")
            continue
        drift = "" if one.drift_ppm is None else f", drift {one.drift_ppm:+.3g} ppm"
        near = format_duration(one.uncertainty_ns)
        parts.append(f"{clean(one.name)} {one.offset_ns * 1e-9:+.6f} s ± {near}{drift} ({clean(one.basis)})")
    shown = parts[:SHOWN_HOSTS] + ([f"{len(parts) - SHOWN_HOSTS} more"] if len(parts) > SHOWN_HOSTS else [])
    return f"clocks against {clean(hosts[0].name)}'s: {'; '.join(shown)}"


def format_outcome(outcome: Outcome) -> str:
    """How the training ended, in words."""
    text = OUTCOME_TEXT.get(outcome.ended, clean(outcome.ended))
    if outcome.signal is not None:
        text += f" ({clean(outcome.signal)})"
    if outcome.exit_code is not None:
        text += f", exit code {outcome.exit_code}"
    return text


def describe_hidden_exchange(report: Report) -> str | None:
    """Where an exchange between ranks is counted that a finding names and the phase ``communication`` does not hold."""
    if report.breakdown is None:
        return None
    for finding in report.findings:
        if finding.rule in EXCHANGE_RULES and finding.phase not in (None, "communication"):
            return (
                f"the time spent waiting for DDP's communication is counted in {finding.phase}, where it occurs; see "
                f"{clean(finding.rule)}"
            )
    return None


def describe_skipped(skipped: Sequence[Skipped]) -> list[tuple[str, str]]:
    """(reason, rules) of what a person may want to act on, and one pair that counts the others.

    That a training on the CPU has no accelerator is obvious; the JSON and HTML reports list it all.
    """
    by_reason: dict[str, list[str]] = {}
    left_out = 0
    for one in skipped:
        if one.reason.startswith(NO_NEWS):
            left_out += 1
        else:
            by_reason.setdefault(clean(one.reason), []).append(clean(one.rule))
    shown = [(reason, ", ".join(rules)) for reason, rules in list(by_reason.items())[:SHOWN_REASONS]]
    more = sum(len(rules) for rules in list(by_reason.values())[SHOWN_REASONS:])
    if left_out:
        shown.append((f"{format_counted(left_out, 'rule')} about accelerators", "training ran on the CPU"))
    if more:
        shown.append((f"{format_counted(more, 'rule')} for other reasons", "the JSON and HTML reports list them"))
    return shown


def describe_run(report: Report, surface: Surface) -> Document:
    """The waits of a run, their reasons and places, and what to do; then the figures, and how far to trust them."""
    faults = (f for f in report.findings if f.kind is Kind.FAULT and f.severity is not Severity.INFO)
    worst = next(faults, None)
    stake = describe_stake(report.findings)
    document = Document(
        title=clean(report.verdict),
        tone=worst.severity.value if worst is not None else "best",
        lead=(Paragraph(text=write((stake, "strong")), indent=0),) if stake else (),
        command=clean(shlex.join(report.command)),
        outcome=_describe_outcome(report),
        names_tool=True,
        next_command=None if report.next_command is None else clean(report.next_command),
        folder=report.run_folder or "",
        root=_find_root(report),
    )
    if report.outcome is not None and not report.outcome.training_seen:
        return replace(
            document, tone="info", lead=(), only_line=_no_training_line(report), sections=_describe_health(report)
        )
    sections = _describe_sections(report, surface)
    if report.tune is None:
        return replace(document, sections=sections)
    return replace(
        document,
        title=clean(report.tune.verdict),
        tone="best",
        lead=(Paragraph(text=write((f"the baseline: {clean(report.verdict)}", "dim")), indent=0),),
        names_tool=False,
        sections=(
            *describe_tuning(report.tune, report.breakdown, report.health),
            *(replace(one, detail=Detail.FULL) for one in sections if one.detail is not Detail.BRIEF),
        ),
    )


def _find_root(report: Report) -> str:
    """The training's working folder: the folder that holds ``.hotloop``, else that from which its script is named."""
    above, _, name = (report.run_folder or "").rstrip("/").rpartition("/.hotloop/")
    if name and "/" not in name:
        return above
    files = {line.file for line in report.lines} | {where.file for f in report.findings for where in f.where}
    scripts = [f"/{word}" for word in report.command if word.endswith(".py") and not word.startswith(("/", "."))]
    return next((file.removesuffix(end) for end in scripts for file in sorted(files) if file.endswith(end)), "")


def _describe_outcome(report: Report) -> Span | None:
    outcome = report.outcome
    if outcome is None:
        return None
    ended_well = outcome.ended in ("completed", "running") and not outcome.exit_code
    text, silent = format_outcome(outcome), [rank for rank in report.ranks if _ended_silently(rank, report)]
    if silent and len(silent) < len(report.ranks):
        names = ", ".join(_name_process(rank) for rank in silent[:SHOWN_SILENT])
        more = f" and {len(silent) - SHOWN_SILENT} more" if len(silent) > SHOWN_SILENT else ""
        text += f"; rank {names}{more}: {SILENT_TEXT}"
    return Span(text, "dim" if ended_well and not silent else "high")


def _ended_silently(rank: RankSummary, report: Report) -> bool:
    """Whether a rank of a command that is over recorded no end."""
    return rank.ended is None and report.outcome is not None and report.outcome.ended not in ("running", "unknown")


def _no_training_line(report: Report) -> str:
    verdict = clean(report.verdict) or "no training was seen in this command"
    reasons = [clean(h.message) for h in report.health if h.level in ("warning", "error")]
    exit_code = report.outcome.exit_code if report.outcome is not None else None
    ended = f" (exit code {exit_code})" if exit_code else ""
    return f"hotloop: {verdict}{': ' if reasons else ''}{'; '.join(reasons)}{ended}"


def _describe_sections(report: Report, surface: Surface) -> tuple[Section, ...]:
    health = _describe_health(report)
    from_files = report.trace is not None
    return (
        *(health if from_files else ()),  # what a file lacks or lost comes before the findings that were read from it
        *_describe_strategy(report, surface),
        *describe_findings(report, surface),
        *_describe_time(report),
        *_describe_device(report),
        *_describe_ranks(report),
        *_describe_memory(report),
        *_describe_scorecard(report),
        *(replace(one, group=TRACE) for one in describe_trace(report, surface.top)),
        *_describe_not_judged(report),
        *(() if from_files else health),
        *_describe_rest(report),
    )


def _name_span(trace: TraceAnalysis | None) -> str:
    """The steps that the utilization is of: those without a mark in the table Steps, where a file shows any."""
    if trace is None:
        return "the steady steps"
    with_device = [rank.timeline.steps for rank in trace.ranks if rank.timeline.devices]
    shows = [any(step.is_whole_on_device for step in steps) for steps in with_device]
    span = "the complete steps" if all(shows) else "the entire trace"
    if any(shows) and not all(shows):
        span = "the complete steps, or the full trace of a rank without any"
    return f"{span}, mean over ranks" if len(trace.ranks) > 1 else span


def _describe_time(report: Report) -> list[Section]:
    sections = []
    step, left_out = report.step, None if report.step is None else report.step.excluded
    if step is not None:
        excluded = (describe_excluded(left_out), describe_restarts(report.attempts))
        note = tuple(Paragraph(text=write((one, "dim"))) for one in excluded if one is not None)
        sections.append(Section(title="Step", note=_describe_steps(step), blocks=note))
    used = "" if report.utilization is None else format_utilization(report.utilization)
    if used:
        sections.append(Section(title="Utilization", note=f"of {_name_span(report.trace)}: {used}"))
    if report.breakdown is not None:
        several = ", mean over ranks" if len(report.ranks) > 1 else ""
        sections.append(
            Section(
                title=TIME,
                note=f"share and mean per step{several}",
                blocks=(_describe_phases(report), *_describe_parts(step)),
                group=TIME,
            )
        )
    return sections


def _describe_parts(step: StepSummary | None) -> tuple[Paragraph, ...]:
    if step is None or step.explained is None:
        return ()
    explained = step.explained
    parts = (
        ("the model's own work", explained.model_ratio),
        ("named by findings", explained.named_ratio),
        ("your code", explained.your_code_ratio),
        ("unknown", explained.unknown_ratio),
    )
    lines = [f"Of the step's wall time: {_join(parts)}"]
    run = step.run_parts
    if run is not None:
        of_run = (
            ("start", run.start_ratio),
            ("training steps", run.training_ratio),
            ("validation", run.validation_ratio),
            ("checkpoints", run.checkpoint_ratio),
            ("end", run.end_ratio),
        )
        lines.append(f"Of the run's: {_join(of_run)}")
    return tuple(Paragraph(text=write((line, "dim"))) for line in lines)


def _join(parts: Sequence[tuple[str, float]]) -> str:
    return " · ".join(f"{name} {format_percent(ratio)}" for name, ratio in parts)


def _describe_steps(step: StepSummary) -> str:
    parts = [
        f"{format_duration(step.mean_ns)} mean, {format_duration(step.median_ns)} median, "
        f"{format_duration(step.p95_ns)} p95",
        f"{format_counted(step.count, 'step')}, {format_count(step.steady_count)} of them steady",
    ]
    rates = ((step.samples_per_s, "samples"), (step.tokens_per_s, "tokens"), (step.batches_per_s, "batches"))
    parts.extend([format_rate(value, noun) for value, noun in rates if value is not None][:2])
    if step.time_to_first_step_ns is not None:
        parts.append(f"first step done after {format_duration(step.time_to_first_step_ns)}")
    return " · ".join(parts)


def _describe_phases(report: Report) -> Shares:
    assert report.breakdown is not None
    exchange, rows = describe_hidden_exchange(report), []
    for name in PHASES:
        phase = report.breakdown.phases[name]
        times = (phase.mean_ns, phase.std_ns, phase.min_ns, phase.median_ns, phase.p95_ns, phase.p99_ns, phase.max_ns)
        lines = [line for line in report.lines if line.phase == name][:LINES_PER_PHASE]
        places = tuple(
            Place(
                file=clean(line.file),
                line=line.line,
                function=clean(line.function),
                share=format_percent(line.share_ratio),
            )
            for line in lines
        )
        rows.append(
            Share(
                name=name,
                ratio=phase.share_ratio,
                share=format_share(phase.share_ratio),
                amounts=tuple(map(format_duration, times)),
                places=places if phase.share_ratio >= LARGE_PHASE_RATIO else (),
                note=exchange or "" if name == "communication" else "",
            )
        )
    return Shares(header=("mean", "std", "min", "median", "p95", "p99", "max"), rows=tuple(rows), style="phase")


def _describe_device(report: Report) -> list[Section]:
    sections, device = [], report.device
    if device is not None:
        rows = []
        for name in ("compute", "exposed_comm", "exposed_mem", "idle"):
            part = getattr(device, name)
            share, total = format_share(part.share_ratio), format_duration(part.total_ns)
            rows.append(Share(name=name, ratio=part.share_ratio, share=share, amounts=(total,)))
        blocks: tuple[Block, ...] = (Shares(header=("total",), rows=tuple(rows), style="device"),)
        if device.busy_ratio is not None:
            blocks += (Paragraph(text=write(f"busy {format_percent(device.busy_ratio)}")),)
        several = "; sums over ranks, shares of that sum" if len(report.ranks) > 1 else ""
        sections.append(Section(title="Device", note=f"from a kernel timeline{several}", blocks=blocks, group=TIME))
    if report.device_phases:
        table = Table(
            header=("phase", "device", "host", "steps timed"),
            rows=tuple(
                (
                    part.phase,
                    format_duration(part.device_mean_ns),
                    format_duration(part.host_mean_ns),
                    format_count(part.steps_count),
                )
                for part in report.device_phases
            ),
        )
        sections.append(Section(title="Device time by phase", note=DEVICE_PHASES_NOTE, blocks=(table,), group=TIME))
    if any(timeline.first_step for timeline in report.timelines):
        sections.append(Section(title="Step timeline", blocks=(StepChart(),), detail=Detail.FULL))
    return sections


def _describe_ranks(report: Report) -> list[Section]:
    if len(report.ranks) < 2:
        return []
    named: dict[int, list[str]] = {}
    for finding in report.findings:
        for number in finding.ranks:
            named.setdefault(number, []).append(clean(finding.rule))
    shown = _ranks_to_show(report.ranks, named)
    blocks: list[Block] = [_rank_table(shown, named, Detail.BRIEF), _rank_table(report.ranks, named, Detail.FULL)]
    if len(shown) < len(report.ranks):
        more = format_counted(len(report.ranks) - len(shown), "rank")
        note = write((f"{more} more in the JSON and HTML reports", "dim"))
        blocks.append(Paragraph(text=note, detail=Detail.BRIEF))
    for rank in shown:
        is_silent = _ended_silently(rank, report)
        if rank.lost_rows or is_silent or rank.ended not in (None, "completed"):
            lost = f"; its recording lost {format_counted(rank.lost_rows, 'row')}" if rank.lost_rows else ""
            known = OUTCOME_TEXT.get(rank.ended or "", clean(rank.ended or UNKNOWN))
            ended = SILENT_TEXT if is_silent else known
            label = f"rank {rank.rank}" if rank.rank is not None else f"pid {rank.pid}"
            blocks.append(Paragraph(text=write(f"{label}: {ended}{lost}")))
    clocks = describe_clocks(report.hosts)
    if clocks is not None:
        blocks.append(Paragraph(text=write((clocks, "dim"))))
    return [Section(title="Ranks", note="share of each rank's own steps", blocks=tuple(blocks))]


def _name_process(rank: RankSummary) -> str:
    return str(rank.rank) if rank.rank is not None else f"pid {rank.pid}"


def _rules_of(rank: RankSummary, named: Mapping[int, list[str]]) -> str:
    return ", ".join(named.get(rank.rank, ())) if rank.rank is not None else ""


def _rank_table(ranks: Sequence[RankSummary], named: Mapping[int, list[str]], detail: Detail) -> Table:
    """The phases are optional: where there is little room, those with the largest share on any rank stay."""
    peak = _peak_shares(ranks)
    phases = [phase for phase in PHASES if peak[phase] > 0]
    rows = []
    for rank in ranks:
        shares = [format_share(rank.breakdown.share(p)) if rank.breakdown else UNKNOWN for p in phases]
        cells = (_name_process(rank), shorten(rank.host, 14, "…"), format_count(rank.steps))
        rows.append((*cells, format_duration(rank.mean_ns), *shares, _rules_of(rank, named)))
    return Table(
        header=("rank", "host", "steps", "step", *phases, "named in"),
        rows=tuple(rows),
        left=frozenset({1, len(phases) + 4}),
        optional={4 + at: peak[phase] for at, phase in enumerate(phases)},
        detail=detail,
    )


def _peak_shares(ranks: Sequence[RankSummary]) -> dict[str, float]:
    known = [rank.breakdown for rank in ranks if rank.breakdown is not None]
    return {phase: max((one.share(phase) for one in known), default=0.0) for phase in PHASES}


def _ranks_to_show(ranks: Sequence[RankSummary], named: Mapping[int, list[str]]) -> list[RankSummary]:
    first = [r for r in ranks if r.rank in named][:SHOWN_RANKS]
    chosen = {id(r) for r in first}
    for rank in ranks:
        if len(chosen) >= SHOWN_RANKS:
            break
        chosen.add(id(rank))
    return [r for r in ranks if id(r) in chosen]


def _describe_memory(report: Report) -> list[Section]:
    memory = report.memory
    if memory is None:
        return []
    known = (("peak", memory.peak_bytes), ("allocated", memory.allocated_bytes), ("reserved", memory.reserved_bytes))
    parts = [f"{name} {format_bytes(value)}" for name, value in known if value is not None]
    if parts and memory.total_bytes is not None:
        share = f" ({format_percent(memory.peak_ratio)})" if memory.peak_ratio is not None else ""
        parts[0] += f" of {format_bytes(memory.total_bytes)}{share}"
    if memory.growth_bytes_per_step is not None:
        parts.append(f"growth {format_bytes(memory.growth_bytes_per_step)} per step")
    shared = describe_shared_memory(report)
    note = (", ".join(parts) or UNKNOWN) + (f"; {shared}" if shared else "")
    return [Section(title="Memory", note=note)]


def _describe_scorecard(report: Report) -> list[Section]:
    if not report.scorecard:
        return []
    rows = tuple(
        (
            clean(row.name),
            format_percent(row.measured_ratio).rjust(7),
            Cell(text=format_band_verdict(row).ljust(7), tone=LEVEL_TONE.get(row.verdict, "dim")),
            Cell(text=format_bands(row), tone="dim"),
        )
        for row in report.scorecard
    )
    table = Table(header=("measure", "here", "verdict", "bands"), rows=rows, left=frozenset({0, 2, 3}), has_words=True)
    return [Section(title="Scorecard", note="compared with typical values from tuning guides", blocks=(table,))]


def _describe_strategy(report: Report, surface: Surface) -> list[Section]:
    lines = []
    for one in report.strategy:
        head = f"{clean(one.technique)}: " + ("" if one.status == "applied" else f"{clean(one.status)}: ")
        file = "" if one.where is None else below_folder(clean(one.where.file), surface.folder)
        place = "" if one.where is None else f" ({file}:{one.where.line})"
        target = "" if one.target is None else f" · {clean(one.target)}{place}"
        numerics = "" if one.numerics is None else f" · {clean(one.numerics)}"
        tone = "strong" if one.status == "applied" else "fair"
        lines.append(Paragraph(text=write((head, tone), f"{clean(one.detail)}{target}{numerics}")))
    return [Section(title="Strategy", note="changes in this run", blocks=tuple(lines))] if lines else []


def _describe_not_judged(report: Report) -> list[Section]:
    if not report.skipped:
        return []
    by_reason: dict[str, list[str]] = {}
    for one in report.skipped:
        by_reason.setdefault(clean(one.reason), []).append(clean(one.rule))
    all_of_them = [(reason, ", ".join(rules)) for reason, rules in by_reason.items()]
    blocks = [
        Paragraph(text=write((f"{reason}: ", "dim"), rules), detail=detail)
        for detail, reasons in ((Detail.BRIEF, describe_skipped(report.skipped)), (Detail.FULL, all_of_them))
        for reason, rules in reasons
    ]
    return [Section(title="Not judged", blocks=tuple(blocks), group=TRUST)]


def _describe_health(report: Report) -> tuple[Section, ...]:
    blocks = tuple(
        Paragraph(text=write((clean(one.level), LEVEL_TONE.get(one.level, "dim")), f": {clean(one.message)}"))
        for one in report.health
    )
    return (Section(title="Health of this report", blocks=blocks, group=TRUST),) if blocks else ()


def _describe_rest(report: Report) -> list[Section]:
    sections, overhead = [], report.overhead
    if overhead is not None:
        known = (
            ("hooks", overhead.hooks_ns),
            ("sampler", overhead.sampler_ns),
            ("deep window", overhead.deep_window_ns),
        )
        parts = [f"{name} {format_duration(value)}" for name, value in known if value is not None]
        if overhead.memory_bytes is not None:
            parts.append(f"memory {format_bytes(overhead.memory_bytes)}")
        if overhead.probe_ns is not None:
            parts.append(f"the probe ran for {format_duration(overhead.probe_ns)} after the run")
        note = f"share of the run {format_percent(overhead.share_ratio)}{'; ' if parts else ''}{', '.join(parts)}"
        method = (Paragraph(text=write((clean(overhead.method), "dim"))),) if overhead.method else ()
        sections.append(Section(title="Hotloop itself", note=note, blocks=method, group=TRUST))
    if report.runs:
        trainings = []
        for number, run in enumerate(report.runs, 1):
            steps = f" ({format_counted(run.step.count, 'step')})" if run.step is not None else ""
            trainings.append(Paragraph(text=write(f"{number}. {clean(run.verdict)}{steps}")))
        note = "the report above covers the largest one"
        sections.append(Section(title="Training jobs in this run", note=note, blocks=tuple(trainings), group=TRUST))
    if report.environment:
        rows = tuple((clean(k), UNKNOWN if v is None else clean(str(v))) for k, v in report.environment.items())
        table = Table(header=("", ""), rows=rows, left=frozenset({0, 1}))
        sections.append(Section(title="Environment", blocks=(table,), group=TRUST, detail=Detail.FULL, is_folded=True))
    return sections


RUN = View(id="run", type=Report, schema=SCHEMA, describe=describe_run, write=Report.to_json, read=Report.from_json)
