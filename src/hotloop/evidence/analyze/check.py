"""Launches of a run and of its baseline, with limits -> what became worse beyond noise and tolerance.

The unit of analysis is the launch: one script took 18 or 30 ms per step from process to process, so an interval over
the steps of two launches says nothing about the code. The spread between launches is estimated from the side that was
launched more than once. Without such a side, only a change larger than any spread that we have measured is called a
regression; everything else beyond the tolerance is inconclusive, and the text says what is missing.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from hotloop.core.check import Check, CheckVerdict, Judged, Launch, Measure, NotJudged, format_change
from hotloop.core.errors import UsageError
from hotloop.core.noise import student_quantile
from hotloop.core.phases import PHASES
from hotloop.core.utilization import TARGETS

SIDE_LEVEL = 0.01
"""Probability of reporting a regression without one, for each of time, memory and the phases together."""
UNKNOWN_NOISE_RATIO = 0.7
"""A worsening beyond any launch-to-launch noise that was measured (18 to 30 ms, in all computing phases alike)."""
QUIET_NOISE_RATIO = 0.25
"""The same for values that page placement and neighbors do not double: memory, and phases without computation."""
QUIET = frozenset({"memory_peak_bytes", "input_wait_ns", "checkpoint_ns", "validation_ns", "other_ns"})
FEW_LAUNCHES = 5
"""Fewer launches of a baseline leave an interval that is too wide to conclude much."""
SAME_UNITS_RATIO = 0.01
DRIFTS = (
    "inconclusive: {unit}s per step drift over the run, and the two sides measured different steps, which take a"
    " different time per {unit}; train the same number of steps on both sides"
)
"""A step costs time that does not grow with its work, so large steps are cheaper per unit, whatever the code."""
RATES = ("samples_per_s", "tokens_per_s", "batches_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """The accepted limits. ``budgets`` maps a key of a limits file to its value, in the unit that the key ends with."""

    step_ratio: float = 0.05
    phase_ratio: float = 0.05
    memory_ratio: float = 0.05
    launch_noise_ratio: float | None = None
    """Standard deviation between launches over their mean, known from elsewhere."""
    budgets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKey:
    """A key of the limits file: the measure that it bounds, its unit in that of the measure, and the direction."""

    measure: str
    scale: float
    is_least: bool = False


BUDGETS: dict[str, LimitKey] = {
    "step_ms": LimitKey(measure="step_ns", scale=1e6),
    "step_p95_ms": LimitKey(measure="step_p95_ns", scale=1e6),
    "time_to_first_step_s": LimitKey(measure="time_to_first_step_ns", scale=1e9),
    "memory_peak_mib": LimitKey(measure="memory_peak_bytes", scale=float(1 << 20)),
    "samples_per_s": LimitKey(measure="samples_per_s", scale=1.0, is_least=True),
    "tokens_per_s": LimitKey(measure="tokens_per_s", scale=1.0, is_least=True),
    "batches_per_s": LimitKey(measure="batches_per_s", scale=1.0, is_least=True),
    **{f"{phase}_ms": LimitKey(measure=f"{phase}_ns", scale=1e6) for phase in PHASES},
    **{f"{phase}_share_ratio": LimitKey(measure=f"{phase}_share_ratio", scale=1.0) for phase in PHASES},
    **{name: LimitKey(measure=name, scale=1.0, is_least=True) for name in TARGETS.values()},
}


def judge(
    runs: Sequence[Launch], baseline: Sequence[Launch], limits: CheckLimits, *, baseline_name: str | None, version: str
) -> Check:
    """Everything in the run that can be judged. With an empty baseline, only the budgets are."""
    judged: list[Judged] = []
    skipped: list[tuple[str, str]] = []
    warnings = [warning for launch in runs for warning in launch.warnings]
    noise = "no comparison: no baseline was given"
    if baseline:
        same = pick_same_machine(runs, baseline)
        if same and len(same) < len(baseline):
            left_out = f"{len(baseline) - len(same)} of {len(baseline)} baseline launches"
            warnings.append(f"{left_out} ran on another machine and are left out")
            baseline = same
        noise = _describe_noise(runs, baseline, limits)
        other = _describe_other_machine(runs, baseline)
        found, missing = _judge_against(runs, baseline, limits)
        if other is not None:
            warnings.append(other)
            found = [_doubt(one, other) for one in found]
        judged += found
        skipped += missing
    targets = {TARGETS[name]: ratio for launch in runs for name, ratio in launch.targets.items()}
    for key, limit in {**targets, **limits.budgets}.items():
        one = _judge_budget(runs, key, limit)
        judged.append(one)
        if one.value is None:
            skipped.append((one.id, one.reason))
    return Check(
        tool_version=version,
        command=(),
        runs=tuple(launch.name for launch in runs),
        baseline=baseline_name,
        baseline_count=len(baseline),
        run_count=len(runs),
        noise=noise,
        confidence_ratio=1 - 2 * SIDE_LEVEL,
        judged=tuple(judged),
        skipped=tuple(NotJudged(id=name, reason=reason) for name, reason in skipped),
        warnings=tuple(dict.fromkeys(warnings)),
    )


# ---- against the baseline


def _judge_against(
    runs: Sequence[Launch], baseline: Sequence[Launch], limits: CheckLimits
) -> tuple[list[Judged], list[tuple[str, str]]]:
    judged: list[Judged] = []
    skipped: list[tuple[str, str]] = []
    reason = _describe_other_work(runs, baseline)
    if reason is None:
        judged.append(_judge_measure("step_ns", runs, baseline, limits.step_ratio, limits))
        step_ns = _mean([launch.measures["step_ns"].value for launch in baseline])
        phases = [
            _judge_measure(f"{phase}_ns", runs, baseline, limits.phase_ratio, limits, step_ns=step_ns)
            for phase in PHASES
            if _known(f"{phase}_ns", runs) and _known(f"{phase}_ns", baseline)
        ]
        judged += [_place(one, runs) for one in phases]
        judged[0] = _place_step(judged[0], phases, runs)
    else:
        skipped += [("step_ns", reason), *((f"phase/{phase}", reason) for phase in PHASES)]
    # The rate of a step with the same work repeats the step's time; it decides only if the work differs.
    rates = (f"{runs[0].unit}s_per_s", *RATES)
    rate = next((name for name in rates if _known(name, runs) and _known(name, baseline)), None)
    if reason is not None and rate is None:
        skipped.append(("throughput", "no rate (samples, tokens or batches per second) is known on both sides"))
    elif rate is not None:
        one = _judge_measure(rate, runs, baseline, limits.step_ratio, limits)
        if reason is not None and any(launch.unit_drifts for launch in (*runs, *baseline)):
            one = _doubt(one, DRIFTS.format(unit=runs[0].unit))
        judged.append(one if reason is not None else replace(one, decides=False))
    name = "memory_peak_bytes"
    if _known(name, runs) and _known(name, baseline):
        judged.append(_judge_measure(name, runs, baseline, limits.memory_ratio, limits))
    else:
        skipped.append((name, "the peak is not known on both sides"))
    return judged, skipped


def _judge_measure(
    name: str,
    runs: Sequence[Launch],
    baseline: Sequence[Launch],
    tolerance: float,
    limits: CheckLimits,
    *,
    step_ns: float | None = None,
) -> Judged:
    """The range of the worsening, and its side of the tolerance; for a phase, as a share of the step (``step_ns``)."""
    is_phase = step_ns is not None
    ours, theirs = ([launch.measures[name] for launch in side] for side in (runs, baseline))
    shown = _mean([one.value for one in ours]), _mean([one.value for one in theirs])
    if name in RATES:
        # Time per unit: twice the time is a worsening by 1, as for a step, and the interval is then the step's, too.
        ours, theirs = [_invert(one) for one in ours], [_invert(one) for one in theirs]
        shown = 1 / _mean([one.value for one in ours]), 1 / _mean([one.value for one in theirs])
    scale = step_ns if step_ns is not None else _mean([one.value for one in theirs])
    level = SIDE_LEVEL / len(PHASES) if is_phase else SIDE_LEVEL
    change = (_mean([one.value for one in ours]) - _mean([one.value for one in theirs])) / scale if scale > 0 else None
    known = False
    width: float | None = None
    if change is not None:
        known, width = _half_width(ours, theirs, scale, limits.launch_noise_ratio, level)
    # Nothing improves by more than all of it.
    least = -_mean([one.value for one in theirs]) / scale if scale > 0 else 0.0
    low = None if change is None or width is None else max(least, change - width)
    high = None if change is None or width is None else change + width
    if change is None:
        verdict, reason = CheckVerdict.INCONCLUSIVE, "the baseline's value is 0"
    elif known:
        verdict, reason = _judge_interval(low, high, tolerance)
    elif (low if low is not None else change) > max(
        tolerance, QUIET_NOISE_RATIO if name in QUIET else UNKNOWN_NOISE_RATIO
    ):
        verdict = CheckVerdict.REGRESSION
        reason = f"worse by {format_change(change)}: more than noise between launches ever caused"
    elif (high if high is not None else change) <= tolerance:
        verdict = CheckVerdict.PASS
        reason = f"within the tolerance of {tolerance:.0%} in these two launches"
    else:
        verdict = CheckVerdict.INCONCLUSIVE
        reason = (
            f"{format_change(change)}, tolerance {tolerance:.0%}: one launch on each side cannot show the"
            " noise between launches"
        )
    return Judged(
        id=f"phase/{name.removesuffix('_ns')}" if is_phase else name,
        kind="baseline",
        name=name,
        verdict=verdict,
        value=shown[0],
        reference=shown[1],
        change_ratio=change,
        low_ratio=low,
        high_ratio=high,
        tolerance_ratio=tolerance,
        reason=reason,
        decides=not is_phase,
    )


def _judge_interval(low: float | None, high: float | None, tolerance: float) -> tuple[CheckVerdict, str]:
    assert low is not None
    assert high is not None
    text = f"worse by {format_change(low)} to {format_change(high)}, tolerance {tolerance:.0%}"
    if low > tolerance:
        return CheckVerdict.REGRESSION, text
    if high <= tolerance:
        return CheckVerdict.PASS, text
    return CheckVerdict.INCONCLUSIVE, f"{text}: inconclusive, because of too much noise between launches"


def _half_width(
    ours: Sequence[Measure], theirs: Sequence[Measure], scale: float, noise_ratio: float | None, level: float
) -> tuple[bool, float | None]:
    """Whether the noise between launches is known, and half of the interval of the change over ``scale``.

    The spread of a side is at least what its steps alone leave open: launches may agree by chance.
    """
    if ours == theirs:
        return True, 0.0  # the same launches on both sides: no difference between them
    freedom = len(ours) + len(theirs) - 2
    within = [one.error for one in (*ours, *theirs)]
    least = max((error for error in within if error is not None), default=0.0)
    if freedom < 2 and noise_ratio is not None:
        spread = max(noise_ratio * _mean([one.value for one in theirs]), least)
        quantile = NormalDist().inv_cdf(1 - level)
    elif freedom >= 1:
        spread = max(math.sqrt((_squares(ours) + _squares(theirs)) / freedom), least)
        quantile = student_quantile(1 - level, freedom)
    else:
        if any(error is None for error in within):
            return False, None
        pair = math.sqrt(sum(error * error for error in within if error is not None))
        tails = [one.freedom for one in (*ours, *theirs) if one.freedom is not None]
        return False, student_quantile(1 - level, max(1, int(min(tails, default=1.0)))) * pair / scale
    return True, quantile * spread * math.sqrt(1 / len(ours) + 1 / len(theirs)) / scale


def _squares(side: Sequence[Measure]) -> float:
    mean = _mean([one.value for one in side])
    return sum((one.value - mean) ** 2 for one in side)


# ---- against limits


def _judge_budget(runs: Sequence[Launch], key: str, limit: float) -> Judged:
    """The judged budget; a budget that nobody can check does not pass.

    A budget is about these launches, not about the code: if the mean of a launch was over it, it was over it. Only the
    uncertainty from the launch's own steps makes it inconclusive.
    """
    budget = BUDGETS[key]
    if not _known(budget.measure, runs):
        return Judged(
            id=f"budget/{key}",
            kind="budget",
            name=key,
            verdict=CheckVerdict.INCONCLUSIVE,
            value=None,
            reference=limit,
            change_ratio=None,
            low_ratio=None,
            high_ratio=None,
            tolerance_ratio=0.0,
            reason=f"{budget.measure} is unknown for this run",
        )
    measures = [launch.measures[budget.measure] for launch in runs]
    value = _mean([one.value for one in measures]) / budget.scale
    errors = [one.error for one in measures]
    width = 0.0
    if all(error is not None for error in errors):
        error = math.sqrt(sum(error * error for error in errors if error is not None)) / len(errors) / budget.scale
        tails = [one.freedom for one in measures if one.freedom is not None]
        width = student_quantile(1 - SIDE_LEVEL, max(1, int(min(tails, default=1.0)))) * error
    sign = -1.0 if budget.is_least else 1.0
    over = sign * (value - limit)
    bound = "at least" if budget.is_least else "at most"
    text = f"{value:,.4g}, but {bound} {limit:,.4g} is allowed"
    if over > width:
        verdict = CheckVerdict.REGRESSION
    elif over <= -width or over <= 0 == width:
        verdict = CheckVerdict.PASS
    else:
        verdict, text = CheckVerdict.INCONCLUSIVE, f"{text}: the difference is smaller than the variation between steps"
    ratio = over / limit if limit > 0 else None
    spread = width / limit if limit > 0 else None
    phase = budget.measure.removesuffix("_ns").removesuffix("_share_ratio")
    return Judged(
        id=f"budget/{key}",
        kind="budget",
        name=key,
        verdict=verdict,
        value=value,
        reference=limit,
        change_ratio=ratio,
        low_ratio=None if ratio is None or spread is None else ratio - spread,
        high_ratio=None if ratio is None or spread is None else ratio + spread,
        tolerance_ratio=0.0,
        reason=text,
        where=runs[0].places.get(phase),
    )


# ---- what to know in addition to the numbers


def _describe_noise(runs: Sequence[Launch], baseline: Sequence[Launch], limits: CheckLimits) -> str:
    freedom = len(runs) + len(baseline) - 2
    count = f"{len(baseline)} baseline launch{'es' if len(baseline) > 1 else ''} and {len(runs)} of this run"
    if freedom < 2 and limits.launch_noise_ratio is not None:
        return f"{count}; the noise between launches is taken from the limits file: {limits.launch_noise_ratio:.1%}"
    if freedom == 0:
        return (
            f"{count}: the noise between launches is not known, only that between the steps of a launch; record"
            f" {FEW_LAUNCHES - 1} more baseline launches (hotloop check RUN --baseline FILE --add-to-baseline)"
        )
    text = f"{count} show the noise between launches"
    if len(baseline) < FEW_LAUNCHES:
        text += f"; with fewer than {FEW_LAUNCHES} baseline launches the intervals are wide"
    return text


def pick_same_machine(runs: Sequence[Launch], baseline: Sequence[Launch]) -> list[Launch]:
    """The launches of the baseline that, as far as is known, ran on the machine of the runs."""
    return [launch for launch in baseline if _describe_other_machine(runs, [launch]) is None]


def _describe_other_machine(runs: Sequence[Launch], baseline: Sequence[Launch]) -> str | None:
    """Differences between the machines that make a difference in time not the code's; None if nothing is known."""
    differing = []
    for name in ("device_name", "accelerator", "device", "cores", "memory_total_bytes", "world_size"):
        ours = {_rounded(launch.machine.get(name)) for launch in runs} - {None}
        theirs = {_rounded(launch.machine.get(name)) for launch in baseline} - {None}
        if ours and theirs and ours != theirs:
            before, after = ("/".join(sorted(map(str, values))) for values in (theirs, ours))
            differing.append(f"{name} {before} -> {after}")
    if not differing:
        return None
    return f"the baseline is from another machine ({', '.join(differing)}): differences may not be caused by the code"


def _rounded(value: object) -> object:
    """Memory rounded to 2 GiB: kernels and containers keep a little for themselves."""
    return round(value / (1 << 31)) if isinstance(value, int) and value > 1 << 30 else value


def _doubt(one: Judged, reason: str) -> Judged:
    """Could be better or worse."""
    return replace(one, verdict=CheckVerdict.INCONCLUSIVE, reason=reason)


def _describe_other_work(runs: Sequence[Launch], baseline: Sequence[Launch]) -> str | None:
    ours, theirs = [launch.units_per_step for launch in runs], [launch.units_per_step for launch in baseline]
    known = [value for value in (*ours, *theirs) if value is not None]
    if len({launch.unit for launch in (*runs, *baseline)}) > 1 or len(known) < len(ours) + len(theirs) or not known:
        return None
    if max(known) - min(known) <= SAME_UNITS_RATIO * max(known):
        return None
    return (
        f"a step has {min(known):,.6g} to {max(known):,.6g} {runs[0].unit}s: steps with different work are not"
        " comparable, so the time per unit is judged"
    )


def _place(one: Judged, runs: Sequence[Launch]) -> Judged:
    return replace(one, where=runs[0].places.get(one.id.removeprefix("phase/")))


def _place_step(step: Judged, phases: Sequence[Judged], runs: Sequence[Launch]) -> Judged:
    """Gives the step the place of the phase that grew most."""
    grown = [one for one in phases if one.change_ratio is not None and one.change_ratio > 0]
    if not grown:
        return step
    worst = max(grown, key=lambda one: one.change_ratio or 0.0)
    return replace(step, where=runs[0].places.get(worst.id.removeprefix("phase/")))


def _known(name: str, side: Sequence[Launch]) -> bool:
    return all(name in launch.measures for launch in side)


def _invert(one: Measure) -> Measure:
    """A rate (above 0) as time per unit."""
    error = None if one.error is None else one.error / one.value**2
    return Measure(value=1 / one.value, error=error, freedom=one.freedom)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


LIMITS_SCHEMA = "hotloop.limits/1"


def load_limits(path: Path) -> CheckLimits:
    """Read a limits file (TOML). Raises UsageError with the key and what it should be."""
    try:
        with path.open("rb") as file:
            text = file.read(1 << 20).decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot read the limits: {error.strerror}; give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; limits must be a TOML file") from None
    return parse_limits(text, source=str(path))


def parse_limits(text: str, *, source: str = "limits") -> CheckLimits:
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    if content.get("schema") != LIMITS_SCHEMA:
        raise UsageError(
            f'{source}: schema is {content.get("schema")!r}; the first line must be: schema = "{LIMITS_SCHEMA}"'
        )
    _refuse_unknown(source, "", content, ("schema", "tolerance", "noise", "budget"))
    tolerance = _table(source, content, "tolerance", ("step_ratio", "phase_ratio", "memory_ratio"))
    noise = _table(source, content, "noise", ("launch_ratio",))
    budgets = _table(source, content, "budget", tuple(BUDGETS))
    return CheckLimits(**tolerance, launch_noise_ratio=noise.get("launch_ratio"), budgets=budgets)


def _table(source: str, content: Mapping[str, Any], table: str, known: Sequence[str]) -> dict[str, float]:
    found = content.get(table, {})
    if not isinstance(found, dict):
        raise UsageError(f"{source}: {table} is {found!r}; write a table: [{table}]")
    _refuse_unknown(source, f"{table}.", found, known)
    for key, value in found.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e300:
            raise UsageError(f"{source}: {table}.{key} is {value!r}; write a number of at least 0")
    return {key: float(value) for key, value in found.items()}


def _refuse_unknown(source: str, prefix: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise UsageError(f"{source}: unknown key {prefix}{key}; known: {', '.join(known)}")
