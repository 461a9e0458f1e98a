"""RankAnalysis -> means that distinguish unknown from zero, the test for material costs, and formatted numbers."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from hotloop.core.analysis import Analysis, Forecast, Line, RankAnalysis
from hotloop.core.findings import Basis, Saving, Severity, Value, Where, severity_of
from hotloop.core.noise import noise_of_mean_ratio
from hotloop.core.recording import TIME_FIELDS

FEWEST_BATCHES, MOST_BATCHES = 5, 32
NARROW_RATIO = 0.25
"""If a forecast promises less than this part of its middle, only its middle is reported."""
MEDIUM_RATIO = 0.05
"""The low forecast from which a finding is of medium severity."""
MATERIAL_RATIO = 0.01
"""A cost below one percent of the step is not worth a reader's minute."""
RARE_FIELDS = ("checkpoint_ns", "nograd_ns")
"""Saves, and forwards without gradients (validation, rollouts): measured separately, and usually in bursts."""
UNEVEN_RATIO = 0.25
"""If the usual interval differs from the mean by more than this, it is reported as an average."""
NOISE_MULTIPLE = 2.0
"""A cost must exceed this many standard errors of the mean step (about 95 % confidence)."""
Z_OF_90_PERCENT = 1.64
"""Standard errors that hold 90 % of a normal distribution."""
MATERIAL_RUN_RATIO = 0.05
"""From this share of the run on, a one-time cost is reported: half of the left-out share that causes a warning."""
LOWERED = {
    Severity.HIGH: Severity.MEDIUM,
    Severity.MEDIUM: Severity.LOW,
    Severity.LOW: Severity.INFO,
    Severity.INFO: Severity.INFO,
}
WORK_FIELDS = ("forward_ns", "backward_ns", "optimizer_ns")
FEWEST_EVENTS = 2
STANDARD_ERRORS = 2.0
SURE_RATIO = 0.01
"""With a low forecast below this, the measurement does not rule out that nothing is saved, and titles say so."""


def known_mean(rank: RankAnalysis, field: str) -> float | None:
    """Mean per steady step of a row field over the steps in which it was known; None if it never was."""
    column = rank.columns.get(field)
    if column:
        known = [value for value in column if value >= 0]
        return sum(known) / len(known) if known else None
    value = rank.mean.get(field)
    return None if value is None or value < 0 else value


def has_loader(rank: RankAnalysis) -> bool:
    """Whether a DataLoader makes the training's batches."""
    return known_count(rank, "micro_batches") > 0 or known_count(rank, "batches") >= 0.5


def add_columns(columns: Mapping[str, Sequence[int]], names: Iterable[str]) -> list[int]:
    """The sum of some fields in every step; fields that were not recorded count as nothing."""
    known = [columns[name] for name in names if columns.get(name)]
    return [sum(max(0, value) for value in values) for values in zip(*known, strict=True)]


def known_count(rank: RankAnalysis, field: str) -> float:
    """Mean count per steady step of a row field; 0 if it is missing."""
    return known_mean(rank, field) or 0.0


def basis_of_replay(low_ratio: float, mid_ratio: float) -> Basis:
    """The basis of a saving that is computed from the step's operators, run again or timed in parts.

    The change itself was not timed, so it is simulated at best. If the range is wide and promises little, its middle is
    no better than a guess, and must not come before a finding with a promise. A medium promise is not a guess.
    """
    if low_ratio >= MEDIUM_RATIO or low_ratio >= max(SURE_RATIO, NARROW_RATIO * mid_ratio):
        return Basis.SIMULATED
    return Basis.RULE_OF_THUMB


def describe_probed(forecast: Forecast, mid_ratio: float, verb: str = "was") -> str:
    """A probe's result for a change, as a predicate: measured only if the probe resembles the run."""
    verb_text = f"{verb} measured to save" if forecast.basis is Basis.MEASURED else "may save"
    return f"{verb_text} {format_share(mid_ratio)}"


def evidence_of(forecast: Forecast) -> dict[str, Value]:
    """The probe's figures, with the reason to doubt them if there is one."""
    return {**forecast.evidence, **({"doubt": forecast.doubt} if forecast.doubt else {})}


def batches_vary_in_length(rank: RankAnalysis) -> bool:
    """Whether the sampled batches have many lengths (tokens with padding), so one step's shapes are not all shapes."""
    columns = (rank.columns.get("tokens", ()), rank.columns.get("padding_tokens", ()))
    totals = [tokens + padding for tokens, padding in zip(*columns, strict=True) if tokens >= 0 and padding >= 0]
    totals = totals[:: -(-len(totals) // MOST_BATCHES) or 1]
    return len(totals) >= FEWEST_BATCHES and len(set(totals)) > 0.3 * len(totals)


def phase_noise_ratio(rank: RankAnalysis, without: Iterable[str] = ()) -> float:
    """Standard error of the mean step, over the mean step, once the fields ``without`` are taken out.

    A cost that comes in rare bursts makes the step noisy by itself, so it is judged against the rest.
    Falls back on the noise of the full step if the recording has no columns.
    """
    removed = set(without)
    kept = [rank.columns[name] for name in TIME_FIELDS if name not in removed and rank.columns.get(name)]
    taken = [rank.columns[name] for name in removed if name not in TIME_FIELDS and rank.columns.get(name)]
    if not kept or rank.step_mean_ns <= 0:
        return rank.step_noise_ratio
    rests = [sum(values) for values in zip(*kept, strict=True)]
    for column in taken:
        rests = [rest - max(0, value) for rest, value in zip(rests, column, strict=True)]
    mean = sum(rests) / len(rests) if rests else 0.0
    if len(rests) < 2 or mean <= 0:
        return rank.step_noise_ratio
    return noise_of_mean_ratio(rests) * mean / rank.step_mean_ns


def spread_of_own_ratio(rank: RankAnalysis, fields: Iterable[str]) -> float:
    """Plain standard error of the mean of the sum of ``fields``, over the mean step.

    For costs in these fields: such a cost can consist of a single long step, so that step counts here.
    Falls back on the noise of the step if the recording has no columns.
    """
    sums = add_columns(rank.columns, fields)
    if len(sums) < 2 or rank.step_mean_ns <= 0:
        return rank.step_noise_ratio
    error: float = statistics.stdev(sums) / math.sqrt(len(sums))
    return error / rank.step_mean_ns


def train_share(analysis: Analysis) -> float:
    """Share of the step in forward and backward, 0..1, mean over ranks, without validation."""
    return analysis.share("forward") + analysis.share("backward")


def steps_per_anchor_step(rank: RankAnalysis) -> float:
    """Optimizer steps of all optimizers per step of the run; 1 for one optimizer or when unknown."""
    counts = [optimizer.steps for optimizer in rank.optimizers if optimizer.steps]
    if not counts or rank.steps <= 0:
        return 1.0
    return max(1.0, sum(counts) / max(rank.steps, max(counts)))


def line_places(lines: Iterable[Line], least_share_ratio: float = 0.2, most: int = 2) -> tuple[Where, ...]:
    """The places of the lines that hold a good part of the samples, most first."""
    return tuple(line.where for line in lines if line.share_ratio >= least_share_ratio)[:most]


def known_places(*places: Where | None) -> tuple[Where, ...]:
    """The places that are known, in the order given, without repeats."""
    return tuple(dict.fromkeys(place for place in places if place is not None))


def threshold_ratio(
    rank: RankAnalysis, *, floor_ratio: float = MATERIAL_RATIO, judged_fields: Iterable[str] = ()
) -> float:
    """The smallest share of the step, 0..1, that a rule may call a cost on this rank.

    The noise is that of the step without ``judged_fields``: a checkpoint that stops every tenth step makes the steps
    uneven, and that unevenness is the fault itself, not noise that could hide it. Nor may one kind of occasional work
    hide another: an evaluation does not count as noise when the logging around it is judged.
    """
    return max(floor_ratio, NOISE_MULTIPLE * _noise_ratio(rank, tuple(judged_fields)))


def is_material(
    analysis: Analysis, cost_ratio: float, *, judged_fields: Iterable[str] = (), own_fields: Iterable[str] = ()
) -> bool:
    """Whether a share of the step exceeds the floor and the noise of the lead rank (see threshold_ratio).

    The noise excludes outliers. If the cost itself is in ``own_fields`` and could consist of one long step, it must
    also exceed the noise of these fields with every outlier in them.
    """
    if own_fields and cost_ratio < NOISE_MULTIPLE * spread_of_own_ratio(analysis.lead, own_fields):
        return False
    return cost_ratio >= threshold_ratio(analysis.lead, judged_fields=judged_fields)


def is_material_span(analysis: Analysis, cost_ratio: float, field: str) -> bool:
    """Whether a separately timed span exceeds the floor and the noise of its own mean on the lead rank.

    A time that was measured inside each step is known better than the step around it, whose unevenness says nothing
    about it. Without a column of the field, the step's noise is used.
    """
    column = [value for value in analysis.lead.columns.get(field, ()) if value >= 0]
    if len(column) < 2:
        return is_material(analysis, cost_ratio)
    mean = statistics.fmean(column)
    error = statistics.stdev(column) / math.sqrt(len(column))
    return cost_ratio >= MATERIAL_RATIO and mean >= NOISE_MULTIPLE * error


def share_bounds(share_ratio: float, samples_count: float) -> tuple[float, float]:
    """Lower and upper bound (Wilson, 90 %) of a share that was seen in ``samples_count`` stack samples.

    >>> low, high = share_bounds(0.5, 100)
    >>> round(low, 2), round(high, 2)
    (0.42, 0.58)
    >>> share_bounds(0.5, 0)
    (0.0, 1.0)
    """
    if samples_count <= 0:
        return 0.0, 1.0
    share = min(max(share_ratio, 0.0), 1.0)
    square = Z_OF_90_PERCENT**2 / samples_count
    centre = (share + square / 2) / (1 + square)
    half = (
        Z_OF_90_PERCENT / (1 + square) * math.sqrt(share * (1 - share) / samples_count + square / (4 * samples_count))
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def steps_between(column: Sequence[int]) -> float | None:
    """Mean number of steps from one occurrence to the next; None with fewer than two of them.

    It goes with means per step: an event in only some of the steps is divided by all of them.

    >>> steps_between([0, 0, 1] * 20), steps_between([0] * 40 + [0, 0, 0, 1] * 5)
    (3.0, 12.0)
    """
    happened = [step for step, count in enumerate(column) if count > 0]
    if len(happened) < 2:
        return None
    gap = (happened[-1] - happened[0]) / (len(happened) - 1)
    goes_through = abs(len(column) / gap - len(happened)) <= 1
    return gap if goes_through else len(column) / len(happened)


def recurs_unevenly(column: Sequence[int]) -> bool:
    """Whether the usual gap between two occurrences differs from the mean of steps_between."""
    happened = [step for step, count in enumerate(column) if count > 0]
    mean = steps_between(column)
    if mean is None:
        return False
    usual = statistics.median(later - earlier for earlier, later in pairwise(happened))
    return abs(usual - mean) > UNEVEN_RATIO * mean


def _noise_ratio(rank: RankAnalysis, judged_fields: tuple[str, ...]) -> float:
    """Never more than the run's plain noise: taking out a part of the step is meant to forgive, not to punish."""
    if not judged_fields:
        return rank.step_noise_ratio
    return min(rank.step_noise_ratio, phase_noise_ratio(rank, (*judged_fields, *RARE_FIELDS)))


def severity_once(run_ratio: float) -> Severity:
    """One level below that of the same share lost in every step, because a longer training makes the share smaller.

    >>> severity_once(0.9).value, severity_once(0.1).value
    ('medium', 'low')
    """
    share = min(1.0, max(0.0, run_ratio))
    return LOWERED[severity_of(Saving(low_ratio=share, mid_ratio=share, high_ratio=share, basis=Basis.MEASURED))]


def settling_column(rank: RankAnalysis, *names: str) -> Sequence[int]:
    """The sum of some fields in every warm-up step after the first, which has unavoidable costs of its own; empty if
    the recording does not show them."""
    return add_columns(rank.warmup_columns or {}, names)[1:]


def run_ratio(rank: RankAnalysis, part_ns: float) -> float:
    """A time's share of the run from its first step to its end, 0..1; 0 if the run is unknown."""
    run_ns = 0 if rank.excluded is None else rank.excluded.run_ns
    return min(1.0, part_ns / run_ns) if run_ns else 0.0


def aftermath_ns(rank: RankAnalysis, events: str, fields: Iterable[str] = WORK_FIELDS) -> float:
    """Mean ns per step by which ``fields`` take longer in the steps that an event of this column slows down.

    After an event, the caches hold something else, pages are copied or fetched again, and written data goes to the
    disk. The mean of the first step after the events is compared with that of the undisturbed steps (those in the
    second half of the interval to the next event), then the mean of the second step, until the difference is within its
    noise. A slowdown after some of the events therefore counts with what it costs, and a single long step does not
    count. 0.0 if fewer than FEWEST_EVENTS show it.
    """
    happened = rank.columns.get(events, ())
    work = [sum(values) for values in zip(*(rank.columns[name] for name in fields), strict=True)]
    starts = [step for step, count in enumerate(happened) if count > 0]
    excess = excess_after(work, starts)
    return sum(excess) * len(starts) / len(work) if work else 0.0


def excess_after(work: Sequence[float], starts: Sequence[int]) -> tuple[float, ...]:
    """How much longer the step of an event, the next one and so on take than undisturbed steps, on average.

    >>> steps = [10, 10, 10, 10, 10, 10, 40, 20, 10, 10, 10, 10, 40, 20, 10, 10, 10, 10, 40, 20, 10, 10, 10, 10]
    >>> excess_after(steps, [6, 12, 18])
    (30.0, 10.0)
    """
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    if len(starts) < FEWEST_EVENTS:
        return ()
    reach = int(statistics.median(gaps)) // 2
    calm = [value for step, value in enumerate(work) if _since(step, starts) >= max(1, reach)]
    if len(calm) < FEWEST_EVENTS:
        return ()
    undisturbed, calm_error = statistics.fmean(calm), _squared_error(calm)
    found: list[float] = []
    for offset in range(reach):
        after = [work[start + offset] for start in starts if start + offset < len(work)]
        if len(after) < FEWEST_EVENTS:
            break
        excess = statistics.fmean(after) - undisturbed
        if excess <= STANDARD_ERRORS * math.sqrt(_squared_error(after) + calm_error):
            break
        found.append(excess)
    return tuple(found)


def _since(step: int, starts: Sequence[int]) -> int:
    """Steps since the last event; the largest possible number before the first event."""
    before = bisect_right(starts, step) - 1
    return step - starts[before] if before >= 0 else step + 1_000_000


def _squared_error(values: Sequence[float]) -> float:
    """Of the mean: outliers count in it as they do in the mean."""
    return statistics.variance(values) / len(values)


def format_time(time_ns: float) -> str:
    """A time with three significant digits in the unit that suits it.

    >>> format_time(18_342_000), format_time(432_000), format_time(2.5e9)
    ('18.3 ms', '432 µs', '2.5 s')
    """
    for unit_ns, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(time_ns) >= unit_ns:
            value = time_ns / unit_ns
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{time_ns:.0f} ns"


def format_share(ratio: float) -> str:
    """A share in percent: whole ones from 10 %, else one decimal.

    >>> format_share(0.463), format_share(0.037)
    ('46%', '3.7%')
    """
    return f"{ratio * 100:.0f}%" if ratio >= 0.0995 else f"{ratio * 100:.1f}%"


def format_bytes(size_bytes: float) -> str:
    """A size in binary units.

    >>> format_bytes(3 * 2**20), format_bytes(1536)
    ('3.0 MiB', '1.5 KiB')
    """
    for unit_bytes, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size_bytes) >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def show_code(line: Line) -> str:
    """A sampled line's source in brackets, to follow its place; empty if it is unknown."""
    return f" ({shorten_code(line.text)})" if line.text.strip() else ""


def shorten_code(text: str, most_count: int = 60) -> str:
    """A line of code, cut after a complete word if it is too long, with dots in place of the rest.

    >>> shorten_code("  total += p.grad.norm().item() ** 2"), shorten_code("mean = decay * mean + value", 20)
    ('total += p.grad.norm().item() ** 2', 'mean = decay * ...')
    """
    text = text.strip()
    if len(text) <= most_count:
        return text
    head = text[: most_count - 4]
    return f"{head.rsplit(' ', 1)[0]} ..."


def format_interval(steps: float, on_average: bool = False) -> str:
    """How often something happens that happens every ``steps`` steps.

    >>> format_interval(1.0), format_interval(50.2), format_interval(24.8, on_average=True)
    ('every step', 'every 50 steps', 'every 25 steps on average')
    """
    return "every step" if steps < 1.5 else f"every {steps:.0f} steps{' on average' * on_average}"
