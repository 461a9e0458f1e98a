"""RankAnalysis -> means that tell unknown from zero, and the noise of a step without some of its parts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from hotloop.core.analysis import Analysis, Forecast, Line, RankAnalysis
from hotloop.core.findings import Basis, Value, Where
from hotloop.core.noise import noise_of_mean_ratio
from hotloop.core.recording import TIME_FIELDS
from hotloop.diagnose.wording import SURE_RATIO, format_share

FEWEST_BATCHES, MOST_BATCHES = 5, 32
NARROW_RATIO = 0.25
"""A forecast that promises less than this part of its middle is told by its middle alone."""
MEDIUM_RATIO = 0.05
"""The low forecast from which a finding is of medium severity."""


def known_mean(rank: RankAnalysis, field: str) -> float | None:
    """Mean per steady step of a row field over the steps in which it was known; None when it never was."""
    column = rank.columns.get(field)
    if column:
        known = [value for value in column if value >= 0]
        return sum(known) / len(known) if known else None
    value = rank.mean.get(field)
    return None if value is None or value < 0 else value


def known_count(rank: RankAnalysis, field: str) -> float:
    """Mean count per steady step of a row field; 0 when it is not there."""
    return known_mean(rank, field) or 0.0


def basis_of_replay(low_ratio: float, mid_ratio: float) -> Basis:
    """The basis of a saving that is computed from the step's operators, run again or timed in parts.

    The change itself was not timed, so it is simulated at best. Where the range is wide and promises little, its middle
    is no better than a guess: it must not stand before what was found with a promise. A medium promise is none.
    """
    if low_ratio >= MEDIUM_RATIO or low_ratio >= max(SURE_RATIO, NARROW_RATIO * mid_ratio):
        return Basis.SIMULATED
    return Basis.RULE_OF_THUMB


def describe_probed(forecast: Forecast, mid_ratio: float, verb: str = "was") -> str:
    """What a probe says of a change, as a predicate: measured only where the probe resembles the run."""
    verb_text = f"{verb} measured to save" if forecast.basis is Basis.MEASURED else "may save"
    return f"{verb_text} {format_share(mid_ratio)}"


def evidence_of(forecast: Forecast) -> dict[str, Value]:
    """The probe's figures, with the reason to doubt them where there is one."""
    return {**forecast.evidence, **({"doubt": forecast.doubt} if forecast.doubt else {})}


def batches_vary_in_length(rank: RankAnalysis) -> bool:
    """Whether the sampled batches come in many lengths (tokens with padding), so that one step's shapes are not all."""
    columns = (rank.columns.get("tokens", ()), rank.columns.get("padding_tokens", ()))
    totals = [tokens + padding for tokens, padding in zip(*columns, strict=True) if tokens >= 0 and padding >= 0]
    totals = totals[:: -(-len(totals) // MOST_BATCHES) or 1]
    return len(totals) >= FEWEST_BATCHES and len(set(totals)) > 0.3 * len(totals)


def phase_noise_ratio(rank: RankAnalysis, without: Iterable[str] = ()) -> float:
    """Standard error of the mean step, over the mean step, once the fields ``without`` are taken out.

    A cost that comes in rare bursts makes the whole step noisy by itself; it is judged against the rest.
    Falls back on the noise of the whole step when the recording has no columns.
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
    """Plain standard error of the mean of what ``fields`` hold together, over the mean step.

    For costs that lie in these fields: a single long step can be all there is to such a cost, so here it counts.
    Falls back on the noise of the step when the recording has no columns.
    """
    columns = [rank.columns[name] for name in fields if rank.columns.get(name)]
    sums = [sum(max(0, value) for value in values) for values in zip(*columns, strict=True)]
    if len(sums) < 2 or rank.step_mean_ns <= 0:
        return rank.step_noise_ratio
    error: float = statistics.stdev(sums) / math.sqrt(len(sums))
    return error / rank.step_mean_ns


def train_share(analysis: Analysis) -> float:
    """Share of the step in forward and backward, 0..1, mean over ranks; validation is not in it."""
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
