"""Steps -> how much of each step was validation: bursts of no-grad forwards told apart from teachers and rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hotloop.core.recording import GAP_FIELDS

from .segments import BoolColumn, IntColumn, Steps

RARE_ABOVE_NONE_RATIO = 0.5
"""Bursts in eval mode are validation when at most this share of the steps has one."""
RARE_ABOVE_USUAL_RATIO = 0.2
"""The same where every step has bursts (a teacher) and some steps have more of them."""

MIN_USUAL_RATIO = 0.1
"""Fewer steps without validation than this do not say what the others would be without it."""


@dataclass(frozen=True, slots=True, eq=False)
class ValidationTime:
    """Nanoseconds of each entry to be moved from the phase in the name to the phase validation."""

    from_input_wait_ns: IntColumn
    from_h2d_ns: IntColumn
    from_forward_ns: IntColumn
    from_other_ns: IntColumn
    passes: IntColumn
    """Validations that ended in each entry."""
    gap_extra_ns: Mapping[str, IntColumn]
    """By gap field, what it holds more than in a usual entry: where ``from_other_ns`` comes from."""

    @property
    def is_validating(self) -> BoolColumn:
        found: BoolColumn = self.passes > 0
        return found

    @property
    def total_ns(self) -> IntColumn:
        return self.from_input_wait_ns + self.from_h2d_ns + self.from_forward_ns + self.from_other_ns


def find_validation(steps: Steps) -> ValidationTime:
    """The validation inside every step, zero where there is none.

    A burst of no-grad forwards is validation when it works on data of its own (batches of a loader that does not feed
    backward, or in eval mode the same tensors again and again), or when such bursts recur at intervals longer than a
    step with the module in eval mode. What no-grad forwards the other
    steps have as well (a teacher beside the validation) stays where it is.
    """
    columns, weight = steps.columns, steps.weight
    rare = _count_rare_eval_bursts(np.maximum(columns["bursts_eval_mode"], 0), weight)
    # A burst may be seen as both: whether its data is the same as before is not always known.
    passes = np.maximum(columns["bursts_other_loader"], rare)
    is_validating = passes > 0
    if not is_validating.any():
        nothing = np.zeros(len(weight), dtype=np.int64)
        return ValidationTime(
            from_input_wait_ns=nothing, from_h2d_ns=nothing, from_forward_ns=nothing, from_other_ns=nothing,
            passes=passes, gap_extra_ns=dict.fromkeys(GAP_FIELDS, nothing),
        )  # fmt: skip
    usual = ~is_validating
    if int(weight[usual].sum()) < MIN_USUAL_RATIO * int(weight.sum()):
        usual = np.zeros(len(weight), dtype=np.bool_)  # the first steps: nothing had recurred yet

    def moved_ns(name: str, whole_ns: IntColumn) -> IntColumn:
        column = np.maximum(columns[name], 0)
        base = float(np.median(column[usual] / weight[usual])) if usual.any() else 0.0
        extra = np.maximum(column - np.rint(base * weight).astype(np.int64), 0)
        return np.where(is_validating, np.minimum(extra, whole_ns), 0).astype(np.int64)

    gaps = np.zeros(len(weight), dtype=np.int64)
    for name in GAP_FIELDS:
        gaps += columns[name]
    return ValidationTime(
        from_input_wait_ns=moved_ns("burst_input_ns", columns["input_wait_ns"] + columns["iterator_ns"]),
        from_h2d_ns=moved_ns("burst_h2d_ns", columns["h2d_ns"]),
        from_forward_ns=moved_ns("nograd_ns", columns["nograd_ns"]),
        from_other_ns=moved_ns("burst_gap_ns", gaps),
        passes=passes,
        gap_extra_ns={name: moved_ns(name, columns[name]) for name in GAP_FIELDS},
    )


def trains_on_others(steps: Steps, validation: ValidationTime) -> bool:
    """Whether most steps take batches of a loader that does not feed backward and validate nothing: ``zip`` of a loader
    that is trained on with one that only gives a target."""
    others = np.maximum(steps.columns["batches"] - np.maximum(steps.columns["micro_batches"], 0), 0)
    taking = np.minimum(others, steps.weight)[~validation.is_validating]
    return int(taking.sum()) > RARE_ABOVE_NONE_RATIO * int(steps.weight.sum())


def validation_in_gaps(validation: ValidationTime, weight: IntColumn, base: BoolColumn) -> dict[str, float]:
    """Nanoseconds of validation in each gap field, as a mean per step of ``base``; fields without any are left out.

    Rows count the gaps inside a burst together. Each field has of them what it holds more than in other steps.
    """
    moved_ns = validation.from_other_ns[base].astype(np.float64)
    extra = {name: column[base].astype(np.float64) for name, column in validation.gap_extra_ns.items()}
    all_extra_ns = np.maximum(np.sum(list(extra.values()), axis=0), 1.0)
    steps_count = max(1, int(weight[base].sum()))
    found = {name: float((moved_ns * column / all_extra_ns).sum()) / steps_count for name, column in extra.items()}
    return {name: ns for name, ns in found.items() if ns > 0}


def _count_rare_eval_bursts(eval_bursts: IntColumn, weight: IntColumn) -> IntColumn:
    """Bursts of each entry beyond the usual ones; zeros where more steps have such than validation would."""
    if not len(weight):
        return np.zeros(0, dtype=np.int64)
    usual_count = int(np.median(eval_bursts // weight))
    extra = np.maximum(eval_bursts - usual_count * weight, 0)
    steps_with_more = int(np.minimum(extra, weight).sum())
    limit_ratio = RARE_ABOVE_USUAL_RATIO if usual_count else RARE_ABOVE_NONE_RATIO
    if steps_with_more > limit_ratio * int(weight.sum()):
        return np.zeros(len(weight), dtype=np.int64)
    rare: IntColumn = extra
    return rare
