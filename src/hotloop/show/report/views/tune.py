"""tune: the trials of a tuning -> what comes first in the report of its baseline.

Ratios and bounds come from the tuning; this turns them into words and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotloop.core.findings import Value
from hotloop.core.phases import PHASES, Breakdown
from hotloop.core.report import Health
from hotloop.core.tuning import PatchCheck, Trial, TrialVerdict, Tuning
from hotloop.show.report.document import (
    Bar,
    Bars,
    Block,
    Detail,
    Paragraph,
    Section,
    Table,
    Text,
    write,
)
from hotloop.show.report.text import (
    UNKNOWN,
    clean,
    format_bytes,
    format_counted,
    format_duration,
    format_percent,
    format_rate,
)

GROUP = "What was tried"
TONES = {
    TrialVerdict.FASTER: "best",
    TrialVerdict.SMALLER: "best",
    TrialVerdict.SLOWER: "fair",
    TrialVerdict.LARGER: "fair",
    TrialVerdict.REJECTED: "fair",
    TrialVerdict.CANNOT_TELL: "",
    TrialVerdict.FAILED: "high",
}
_RATE = {"token": "tokens_per_s", "sample": "samples_per_s", "step": "steps_per_s"}


def describe_tuning(tuning: Tuning, before: Breakdown | None, health: Sequence[Health] = ()) -> tuple[Section, ...]:
    """The trials, what was measured of each, and how far to trust that. ``before`` is the baseline's breakdown, and
    ``health`` what its report has to say of itself: a busy machine, above all."""
    against = "baseline" if tuning.reference is None else clean(tuning.reference.id)
    blocks: list[Block] = []
    unit = work_unit(tuning)
    if tuning.reference is not None and tuning.reference.measured:
        blocks.append(Paragraph(text=write(f"{against}: {describe_measured(tuning.reference, unit)}")))
    if not tuning.trials:
        blocks.append(Paragraph(text=write("no finding in the baseline suggests a technique that can be tried")))
    else:
        blocks.append(Bars(title="trials", rows=tuple(_describe_trial(tuning, one, unit) for one in tuning.trials)))
    if tuning.strategy_file:
        blocks.append(Paragraph(text=write(f"Strategy: {clean(tuning.strategy_file)}"), detail=Detail.FULL))
    goal = "Peak memory" if tuning.goal == "memory" else "Speed"
    sections = [Section(title="Trials", note=f"{goal} relative to {against}", blocks=tuple(blocks), group=GROUP)]
    sections += _list_trials(tuning, before)
    doubts = [f"the baseline: {one.message}" for one in health if one.level in ("warning", "error")]
    notes = tuple(Paragraph(text=write(clean(note))) for note in (*doubts, *describe_notes(tuning)))
    trust = "How far to trust this"
    return (*sections, *((Section(title=trust, blocks=notes, group=GROUP),) if notes else ()))


def _full(title: str, note: str, blocks: tuple[Block, ...]) -> Section:
    return Section(title=title, note=note, blocks=blocks, group=GROUP, detail=Detail.FULL)


def _describe_trial(tuning: Tuning, trial: Trial, unit: str) -> Bar:
    notes: list[Text] = [
        write(line) for line in (describe_measured(trial, unit), describe_side(tuning.goal, trial)) if line
    ]
    notes.append(write((clean(trial.reason), "dim")))
    loss = trial.quality.get("reason")
    if loss and trial.quality.get("status") != "rejected":
        notes.append(write((f"loss {trial.quality['status']}: {clean(str(loss))}", "dim")))
    forecast = trial.forecast.get("speedup_ratio")
    if isinstance(forecast, float):
        notes.append(write((f"forecast {forecast:.2f}x ({trial.forecast.get('basis')})", "dim")))
    return Bar(
        label=clean(trial.id),
        value=goal_ratio(tuning.goal, trial)[0],
        shown=describe_ratio(tuning.goal, trial),
        mark=trial.verdict.value,
        tone=TONES[trial.verdict],
        notes=tuple(notes),
    )


def describe_ratio(goal: str, trial: Trial) -> str:
    """The trial's ratio in the words of the goal, with its interval."""
    better, worse = (" smaller", " larger") if goal == "memory" else ("", "")
    first = "" if trial.first_steps is None or goal == "memory" else f" over the first {trial.first_steps} steps"
    ratio = _words(*goal_ratio(goal, trial), better, worse)
    return ratio if ratio == UNKNOWN else ratio + first


def _words(ratio: float | None, low: float | None, high: float | None, better: str, worse: str) -> str:
    """A ratio with its interval. With words for both directions nothing is '0.97x smaller': it is 1.03x larger."""
    if not ratio:
        return UNKNOWN
    turned = bool(worse) and ratio < 1
    if turned:
        ratio, low, high = 1 / ratio, 1 / high if high else None, 1 / low if low else None
    bounds = "" if low is None or high is None else f" ({low:.2f}–{high:.2f})"
    return f"{ratio:.2f}x{worse if turned else better}{bounds}"


def goal_ratio(goal: str, trial: Trial) -> tuple[float | None, float | None, float | None]:
    """Ratio and bounds by which the goal judges, above 1 where the trial is better."""
    if goal == "memory":
        ratio, low, high = (_number(trial.memory, key) for key in ("saving_ratio", "low_ratio", "high_ratio"))
        return ratio, low, high
    return trial.speedup_ratio, trial.low_ratio, trial.high_ratio


def describe_measured(trial: Trial, unit: str) -> str:
    """Throughput, time per unit, and peak memory in one line; empty when nothing was measured."""
    if not trial.measured:
        return ""
    parts = [
        format_rate(_number(trial.measured, _RATE[unit]), f"{unit}s"),
        f"{format_duration(_time_per_unit(trial, unit))} per {unit}",
        f"peak {_peak(trial)}",
    ]
    return ", ".join(part for part in parts if not part.startswith(UNKNOWN))


def describe_side(goal: str, trial: Trial) -> str:
    """The quantity that the goal itself does not judge: the other half of a trade-off."""
    if goal == "memory" and trial.speedup_ratio is not None:
        return f"speed: {describe_ratio('speed', trial)} of the baseline"
    return ""


def work_unit(tuning: Tuning) -> str:
    """The unit that every measured arm counted: tokens, else samples, else steps."""
    held = [one.measured for one in (tuning.reference, *tuning.trials) if one is not None and one.measured]
    for unit in ("token", "sample"):
        if held and all(_number(one, _RATE[unit]) is not None for one in held):
            return unit
    return "step"


def _time_per_unit(trial: Trial, unit: str) -> float | None:
    rate = _number(trial.measured, _RATE[unit])
    return None if not rate else 1e9 / rate


def _peak(trial: Trial) -> str:
    peak = _number(trial.measured, "rank_peak_bytes") or _number(trial.measured, "peak_bytes")
    return format_bytes(peak)


def _number(held: Mapping[str, Value], key: str) -> float | None:
    value = held.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def describe_notes(tuning: Tuning) -> list[str]:
    """Notes on the figures, one sentence each."""
    notes = []
    spread, count = tuning.baseline.get("spread_ratio"), tuning.baseline.get("n")
    if isinstance(spread, float) and count:
        notes.append(f"noise on this machine: the baseline's {count} processes vary by {format_percent(spread)}")
    repeat = tuning.baseline.get("losses_repeat")
    if repeat is not None:
        notes.append(
            "the baseline's losses are reproducible bit for bit"
            if repeat
            else "the baseline's losses are not reproducible: candidates are compared with the baseline's own spread"
        )
    if tuning.baseline.get("ended"):
        notes.append(str(tuning.baseline["ended"]))
    return [*notes, *([] if tuning.patch is None else [describe_patch(tuning.patch)]), *tuning.warnings]


def describe_patch(check: PatchCheck) -> str:
    """The patched source's gain next to the strategy's, and whether the two match."""
    measured = UNKNOWN
    if check.speedup_ratio is not None:
        measured = f"{check.speedup_ratio:.2f}x"
        if check.low_ratio is not None and check.high_ratio is not None:
            measured += f" ({check.low_ratio:.2f}–{check.high_ratio:.2f})"
    strategy = UNKNOWN if check.strategy_ratio is None else f"{check.strategy_ratio:.2f}x"
    left = f"; not in the patch: {', '.join(check.left_out)}" if check.left_out else ""
    pairs = format_counted(check.n, "pair")
    return f"patch.diff {check.status}: patched source {measured} in {pairs}, strategy {strategy}{left}" + (
        "" if check.status == "reproduced" else f"; {check.reason}"
    )


def _list_trials(tuning: Tuning, before: Breakdown | None) -> list[Section]:
    """The trials with forecast and measurement; and mean time per step of every phase, before and with each."""
    if not tuning.trials:
        return []
    rows, unit = [], work_unit(tuning)
    for trial in tuning.trials:
        forecast = trial.forecast.get("speedup_ratio")
        rows.append(
            (
                clean(trial.id),
                trial.verdict.value,
                format_rate(_number(trial.measured, _RATE[unit]), f"{unit}s"),
                _peak(trial),
                describe_ratio("speed", trial),
                f"{forecast:.2f}x" if isinstance(forecast, float) else UNKNOWN,
                str(trial.n),
                UNKNOWN if trial.memory_ratio is None else f"{trial.memory_ratio:.2f}x",
                clean(str(trial.quality.get("status", UNKNOWN))),
                _describe_break_even(trial),
            )
        )
    header = (
        "candidate", "verdict", "throughput", "peak memory per rank", "speed",
        "forecast", "pairs", "memory", "loss", "pays off after",
    )  # fmt: skip
    note = "Compared with the unchanged command, in fresh processes."
    sections = [_full("Speed and forecast", note, (Table(header=header, rows=tuple(rows)),))]
    measured = [trial for trial in tuning.trials if trial.breakdown]
    if before is not None and measured:
        sections.append(_list_phases(measured, before))
    return sections


def _describe_break_even(trial: Trial) -> str:
    if trial.verdict is not TrialVerdict.FASTER or trial.break_even_steps is None:
        return UNKNOWN
    return format_counted(trial.break_even_steps, "step")


def _list_phases(measured: list[Trial], before: Breakdown) -> Section:
    rows = []
    for phase in PHASES:
        times = [before.mean_ns(phase), *(trial.breakdown.get(phase, 0.0) for trial in measured)]
        if any(times):
            rows.append((phase, *(format_duration(time_ns) for time_ns in times)))
    table = Table(header=("phase", "baseline", *(clean(trial.id) for trial in measured)), rows=tuple(rows))
    return _full("Before and after", "Mean host time per step.", (table,))
