"""Tuning -> its tables: every trial with forecast beside measurement, and the phases before and after."""

from __future__ import annotations

from hotloop.core.phases import PHASES, Breakdown
from hotloop.core.tuning import PatchCheck, Trial, Tuning, Verdict
from hotloop.report import text as t
from hotloop.report.tables import Table

UNKNOWN = t.UNKNOWN


def tune_tables(tuning: Tuning, before: Breakdown | None) -> tuple[Table, ...]:
    """The trials; and mean time per step of every phase, before and with each trial that was measured."""
    tables = [_tell_trials(tuning)] if tuning.trials else []
    measured = [trial for trial in tuning.trials if trial.breakdown]
    if before is not None and measured:
        tables.append(_tell_phases(measured, before))
    return tuple(tables)


def describe_trial(trial: Trial) -> str:
    """The measured ratio with its interval, or why there is none."""
    if trial.speedup_ratio is None:
        return UNKNOWN
    text = f"{trial.speedup_ratio:.2f}x"
    if trial.low_ratio is not None and trial.high_ratio is not None:
        text += f" ({trial.low_ratio:.2f}–{trial.high_ratio:.2f})"
    return text


def describe_notes(tuning: Tuning) -> list[str]:
    """What a reader has to know about the figures, one sentence each."""
    notes = []
    spread, count = tuning.baseline.get("spread_ratio"), tuning.baseline.get("n")
    if isinstance(spread, float) and count:
        notes.append(f"{count} processes of the baseline spread by {t.format_percent(spread)} on this machine")
    repeat = tuning.baseline.get("losses_repeat")
    if repeat is not None:
        notes.append(
            "the baseline's losses repeat bit for bit"
            if repeat
            else "the baseline's losses do not repeat: candidates are held against their own spread"
        )
    if tuning.baseline.get("ended"):
        notes.append(str(tuning.baseline["ended"]))
    return [*notes, *([] if tuning.patch is None else [describe_patch(tuning.patch)]), *tuning.warnings]


def describe_patch(check: PatchCheck) -> str:
    """The patched source's gain beside the strategy's, and whether it is that."""
    measured = UNKNOWN
    if check.speedup_ratio is not None:
        measured = f"{check.speedup_ratio:.2f}x"
        if check.low_ratio is not None and check.high_ratio is not None:
            measured += f" ({check.low_ratio:.2f}–{check.high_ratio:.2f})"
    strategy = UNKNOWN if check.strategy_ratio is None else f"{check.strategy_ratio:.2f}x"
    left = f"; it lacks {', '.join(check.left_out)}" if check.left_out else ""
    pairs = t.format_counted(check.n, "pair")
    return (
        f"patch.diff {check.status}: the patched source without a strategy {measured} in {pairs}, "
        f"the strategy {strategy}{left}" + ("" if check.status == "reproduced" else f"; {check.reason}")
    )


def _tell_trials(tuning: Tuning) -> Table:
    rows = []
    for trial in tuning.trials:
        forecast = trial.forecast.get("speedup_ratio")
        rows.append(
            (
                trial.id,
                trial.verdict.value,
                describe_trial(trial),
                f"{forecast:.2f}x" if isinstance(forecast, float) else UNKNOWN,
                str(trial.n),
                UNKNOWN if trial.memory_ratio is None else f"{trial.memory_ratio:.2f}x",
                str(trial.quality.get("status", UNKNOWN)),
                _describe_break_even(trial),
            )
        )
    header = ("candidate", "verdict", "speed", "forecast", "pairs", "peak memory", "loss", "pays off after")
    return Table(
        title="Trials", note="Against the unchanged command, in fresh processes.", header=header, rows=tuple(rows)
    )


def _describe_break_even(trial: Trial) -> str:
    if trial.verdict is not Verdict.FASTER or trial.break_even_steps is None:
        return UNKNOWN
    return t.format_counted(trial.break_even_steps, "step")


def _tell_phases(measured: list[Trial], before: Breakdown) -> Table:
    rows = []
    for phase in PHASES:
        times = [before.mean_ns(phase), *(trial.breakdown.get(phase, 0.0) for trial in measured)]
        if any(times):
            rows.append((phase, *(t.format_duration(time_ns) for time_ns in times)))
    return Table(
        title="Before and after",
        note="Mean host time per step.",
        header=("phase", "baseline", *(trial.id for trial in measured)),
        rows=tuple(rows),
    )
