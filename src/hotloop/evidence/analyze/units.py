"""Steps -> the work in them: samples and tokens per steady step, how certain they are, and whether they drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.core.noise import noise_of_mean_ratio

from .segments import BoolColumn, IntColumn, Steps
from .stats import FloatColumn, per_step_values, weighted_mean_std, weighted_quantiles

MOST_BACKWARDS_OF_ONE = 1.05
"""Backwards per step up to which all optimizers step after the same one."""
MOST_FORWARDS_OF_ONE = 4
"""More forwards of a single sample than this per backward are not passes over the same sample."""
MIN_ALIKE_RATIO = 0.6
"""Samples are a fair unit of work if at least this share of the steps contains about the usual number of them."""
MOSTLY_FED_RATIO = 0.5
"""If more than this share of the steps takes batches from a loader, all samples come from it."""
DRIFT_RATIO = 0.05
"""Work per step drifts if the first and the last third of the steady steps differ by more than this share of their mean
(the change in a rate that `hotloop check` allows) and by DRIFT_ERRORS standard errors."""
DRIFT_ERRORS = 3.0
MIN_DRIFT_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Mean work per step in the first and in the last third of the steady steps, and the standard errors."""

    first: float
    last: float
    first_error: float
    last_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The work of one process per steady step; None if unknown."""

    samples_per_step: float | None
    samples_vary: bool
    """Whether samples differ much from step to step."""
    samples_drift: Drift | None
    tokens_per_step: float | None
    tokens_noise_ratio: float | None
    """Standard error of tokens_per_step over it, because not every batch was read; 0 if every batch was."""
    tokens_drift: Drift | None
    padding_ratio: float | None
    padding_to_longest_ratio: float | None


def measure_units(steps: Steps, base: BoolColumn, is_validating: BoolColumn, *, seeks_drift: bool = True) -> Units:
    """The work in the steady steps: exactly those that times and shares are computed from. Without ``seeks_drift``,
    drifts are not reported."""
    known, taken = _classify_work(steps, base, is_validating)
    samples_per_step, vary = _samples_per_step(steps, base, known, taken)
    samples = np.where(taken, steps.columns["samples"], 0)
    tokens = _Tokens(steps)
    padding_ratio, to_longest_ratio = tokens.padding(base)
    tokens_per_step, noise_ratio = None, None
    each = np.where(taken, tokens.each, 0.0)
    if each.any():
        # As many steps as contain these samples: a batch that was fetched ahead belongs to another step.
        count = int(samples.sum()) / samples_per_step if samples_per_step else int(steps.weight[known].sum())
        tokens_per_step, noise_ratio = float(each.sum()) / count, tokens.noise_ratio(taken)
    return Units(
        samples_per_step=samples_per_step,
        samples_vary=vary,
        samples_drift=_drift(samples.astype(np.float64), steps.weight, known)
        if seeks_drift and samples_per_step is not None
        else None,
        tokens_per_step=tokens_per_step,
        tokens_noise_ratio=noise_ratio,
        tokens_drift=_drift(each, steps.weight, known) if seeks_drift and tokens_per_step is not None else None,
        padding_ratio=padding_ratio,
        padding_to_longest_ratio=to_longest_ratio,
    )


class _Tokens:
    """Tokens of every entry: the number that was read, else its size times the share that was read around it.

    The size is the number of tokens with padding, which shapes show for every batch; else the number of samples
    (recordings before 0.2), else 1. Between two entries that were read, the share of tokens is interpolated, so that
    parts of a run that were read more densely do not count for more.
    """

    def __init__(self, steps: Steps) -> None:
        columns = steps.columns
        tokens, padded, samples = columns["tokens"], columns["padded_tokens"], np.maximum(columns["samples"], 0)
        self._tokens = np.maximum(tokens, 0)
        self._padding = np.maximum(columns["padding_tokens"], 0)
        self._longest = columns["longest_tokens"]
        shaped = padded > 0
        if shaped.any():
            per_sample = int(padded[shaped].sum()) / max(1, int(samples[shaped].sum()))
            self.size = np.where(padded >= 0, padded, samples * per_sample).astype(np.float64)
            self._read = self._tokens + self._padding
        else:
            self.size = (samples if samples.any() else steps.weight).astype(np.float64)
            self._read = np.where((tokens >= 0) & ~steps.is_block, self.size, 0)
        self._at = np.flatnonzero((tokens >= 0) & (self._read > 0))
        self._unread = np.maximum(self.size - self._read, 0.0)
        if len(self._at):
            self._share = self._tokens[self._at] / self._read[self._at]
            self.each = self._tokens + self._unread * np.interp(np.arange(len(tokens)), self._at, self._share)
        else:
            self.each = np.zeros(len(tokens))

    def noise_ratio(self, chosen: BoolColumn) -> float | None:
        """Standard error of the chosen entries' tokens over these.

        Shares differ from their neighbors by the square root of 2 times their own spread (von Neumann 1941), whatever
        their trend. The entries that were read represent the unread ones around them, which have the same spread.
        """
        unread = np.where(chosen, self._unread, 0.0)
        if not unread.any():
            return 0.0
        if len(self._at) < 2:
            return None
        spread = math.sqrt(float((np.diff(self._share) ** 2).mean()) / 2)
        place = np.interp(np.arange(len(unread)), self._at, np.arange(len(self._at)))
        below = place.astype(np.int64)
        above = np.minimum(below + 1, len(self._at) - 1)
        stands_for = np.bincount(below, unread * (1 - (place - below)), len(self._at))
        stands_for += np.bincount(above, unread * (place - below), len(self._at))
        error = spread * math.sqrt(float((stands_for**2).sum() + (unread**2).sum()))
        return error / float(self.each[chosen].sum())

    def padding(self, base: BoolColumn) -> tuple[float | None, float | None]:
        """Shares of padding in the steady steps' batches, as they are and if only padded to their longest sample."""
        read = base & (self._tokens + self._padding > 0)
        tokens, whole = int(self._tokens[read].sum()), int((self._tokens + self._padding)[read].sum())
        longest = int(self._longest[read].sum()) if bool((self._longest[read] >= 0).all()) else 0
        return _ratio(whole - tokens, whole), _ratio(longest - tokens, longest)


def _drift(values: FloatColumn, weight: IntColumn, chosen: BoolColumn) -> Drift | None:
    """The work of the first and the last third of the chosen steps; None if these are too few."""
    values, weight = values[chosen], weight[chosen]
    count = int(weight.sum())
    if count < MIN_DRIFT_STEPS:
        return None
    reach = np.cumsum(weight)
    parts = (reach <= count // 3, reach - weight >= count - count // 3)
    if min(int(part.sum()) for part in parts) < 2:
        return None  # one or two blocks contain all of them
    means = [float(values[part].sum()) / int(weight[part].sum()) for part in parts]
    errors = [
        mean * noise_of_mean_ratio((values[part] / weight[part]).tolist(), weight[part].tolist())
        for mean, part in zip(means, parts, strict=True)
    ]
    return Drift(first=means[0], last=means[1], first_error=errors[0], last_error=errors[1])


def is_drift(found: Sequence[Drift]) -> bool:
    """Whether the work of all ranks together, one entry for each, drifts."""
    first, last = sum(one.first for one in found), sum(one.last for one in found)
    error = math.sqrt(sum(one.first_error**2 + one.last_error**2 for one in found))
    return abs(last - first) > max(DRIFT_RATIO * (first + last) / 2, DRIFT_ERRORS * error)


def _are_decisions(steps: Steps, known: BoolColumn) -> bool:
    """Whether forwards of one sample each lead to a backward together: the states of an episode, say.

    No single input shows how many of them the backward learns from.
    """
    columns = {name: int(steps.columns[name][known].sum()) for name in ("samples", "forwards", "backwards")}
    fed = bool((steps.columns["micro_batches"][known] > 0).any())
    each_ends_in_one = columns["samples"] <= max(1, columns["backwards"])
    return not fed and each_ends_in_one and columns["forwards"] > MOST_FORWARDS_OF_ONE * max(1, columns["backwards"])


def _are_ambiguous(steps: Steps, base: BoolColumn, known: BoolColumn) -> bool:
    """Whether the count may include the same samples several times, or only a part of them.

    Without a loader, each backward counts what its model was given: if several optimizers take turns (a GAN, an actor
    and its critics), that is one batch several times. If a step takes batches of several loaders (``zip``), only those
    of one are counted. And most steps may not have reported their samples.
    """
    weight, columns = steps.weight, steps.columns
    if 2 * int(weight[known].sum()) < int(weight[base].sum()):
        return True
    count = int(weight[known].sum())
    batches, taken = int(columns["batches"][known].sum()), int(columns["micro_batches"][known].sum())
    if taken == 0:
        turns = sum(1 for number in steps.optimizer_steps.values() if number > 0) > 1
        return turns and int(columns["backwards"][known].sum()) > MOST_BACKWARDS_OF_ONE * count
    # Validation batches come in a burst of forwards without gradients, and not in most of the steps.
    in_bursts = columns["bursts_other_loader"] > 0
    others = known & ~in_bursts & (columns["micro_batches"] > 0) & (columns["batches"] > columns["micro_batches"])
    return batches > taken and 2 * int(weight[others].sum()) > count


def _classify_work(steps: Steps, base: BoolColumn, is_validating: BoolColumn) -> tuple[BoolColumn, BoolColumn]:
    """Which steady entries show their work, and whose samples and tokens are those that are trained on.

    Steps with validation may contain its samples as well: if there are other steps, they count only with no more
    samples per micro-batch than those.
    """
    samples, micro_batches = steps.columns["samples"], steps.columns["micro_batches"]
    known = base & (samples >= 0)
    training = known & ~is_validating
    if training.any():
        fed = training & (micro_batches > 0)
        most = float((samples[fed] / micro_batches[fed]).max()) if fed.any() else 0.0
        known &= ~is_validating | ((micro_batches > 0) & (samples <= most * micro_batches))
    fed = known & (micro_batches > 0)
    if int(steps.weight[fed].sum()) > MOSTLY_FED_RATIO * int(steps.weight[known].sum()):
        # A loop that fetches ahead takes two batches in an epoch's first step and none in its last one.
        return known, fed
    return known, known


def _samples_per_step(
    steps: Steps, base: BoolColumn, known: BoolColumn, taken: BoolColumn
) -> tuple[float | None, bool]:
    """Mean samples per step if they are known, and whether they differ much from step to step."""
    micro_batches, weight = steps.columns["micro_batches"], steps.weight[known]
    column = np.where(taken, steps.columns["samples"], 0)[known]
    if int(column.sum()) == 0 or _are_decisions(steps, known) or _are_ambiguous(steps, base, known):
        return None, False
    per_step = per_step_values(column, weight)
    mean, _ = weighted_mean_std(per_step, weight)
    batches, count = int(micro_batches[known].sum()), int(weight.sum())
    (usual_taken,) = weighted_quantiles(per_step_values(micro_batches[known], weight), weight, (0.5,))
    if usual_taken >= 1 and abs(batches - usual_taken * count) <= 1:
        # One batch that was fetched before the first of these steps, or for the first step after them.
        mean = usual_taken * int(column.sum()) / batches
    (usual,) = weighted_quantiles(per_step, weight, (0.5,))
    alike = np.abs(per_step - usual) <= 0.5 * usual
    return mean, int(weight[alike].sum()) < MIN_ALIKE_RATIO * int(weight.sum())


def _ratio(part: int, whole: int) -> float | None:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else None
