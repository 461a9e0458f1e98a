"""Steps -> the nine phases of every step, which sum to the step exactly.

Host waits for a device count for the phases that it computes. Bursts of no-grad forwards are classified as validation,
or as teachers and rollouts. The time after the last step has phases too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hotloop.core.errors import InvariantError
from hotloop.core.phases import PHASES, Breakdown
from hotloop.core.recording import DEVICE_TIME_FIELDS, GAP_FIELDS, TIME_FIELDS

from .segments import BoolColumn, IntColumn, Steps
from .stats import describe_phase

FEWEST_TIMED = 5
"""This many steps timed on the device determine the times of those between them."""
WAITS = (GAP_FIELDS, ("input_wait_ns", "iterator_ns"))
"""Where the host may wait while the device computes, in the order in which the wait is subtracted: a loop that stops
for the device does so between its phases."""
HOST_PREFIX = "host_"


def host_column(columns: Mapping[str, IntColumn], name: str) -> IntColumn:
    """A time field by the host's clock alone."""
    return columns.get(HOST_PREFIX + name, columns[name])


def charge_waits(steps: Steps) -> Steps:
    """The steps, each with the same length; those of a training on a CPU as they are.

    A step that was not timed on the device is assumed to need the average of the others there.
    """
    times = _device_times(steps)
    if times is None:
        return steps
    columns = {name: steps.columns[name].copy() for name in TIME_FIELDS}
    host = {HOST_PREFIX + name: steps.columns[name] for name in DEVICE_TIME_FIELDS}
    missing = {name: np.maximum(0, times[name] - columns[name]) for name in DEVICE_TIME_FIELDS}
    whole = np.maximum(1, sum(missing.values()))
    others = sum(columns[name] for name in TIME_FIELDS if not _is_timed_or_wait(name))
    rest_ns = np.maximum(0, steps.step_ns - sum(times.values()) - others)
    waits_ns = sum(columns[name] for group in WAITS for name in group)
    # In a step with a validation the gaps are also its.
    surplus = np.where(steps.columns["bursts"] > 0, 0, np.minimum(np.maximum(0, waits_ns - rest_ns), whole))
    surplus = np.where(sum(missing.values()) > 0, surplus, 0)
    moved = np.zeros_like(steps.step_ns)
    for group in WAITS:
        moved += _take(columns, group, surplus - moved)
    given = np.zeros_like(moved)
    for name in DEVICE_TIME_FIELDS:
        part = moved * missing[name] // whole
        columns[name] += part
        given += part
    columns["backward_ns"] += moved - given  # the remainder from rounding
    return replace(steps, columns={**steps.columns, **columns, **host})


def charged_ratio(steps: Steps, base: BoolColumn) -> float:
    """The part of these steps in which the host waits for the device between its phases, 0..1."""
    moved_ns = sum(
        int((steps.columns[name] - host_column(steps.columns, name))[base].sum()) for name in DEVICE_TIME_FIELDS
    )
    return moved_ns / max(1, int(steps.step_ns[base].sum()))


def _device_times(steps: Steps) -> dict[str, IntColumn] | None:
    """ns of each phase on the device, of every step; None if too few were timed. A phase that no step shows (copies on
    a stream that is not timed) takes none."""
    times = {}
    for name, device_field in DEVICE_TIME_FIELDS.items():
        column = steps.columns[device_field]
        known: BoolColumn = (column >= 0) & ~steps.is_block
        if name != "h2d_ns" and int(known.sum()) < FEWEST_TIMED:
            return None
        steady = known & (np.arange(len(known)) >= len(known) // 4)  # the first steps compile, allocate, warm up
        chosen = steady if steady.any() else known
        mean_ns = float(np.median(column[chosen])) if chosen.any() else 0.0
        times[name] = np.where(known, column, np.round(mean_ns * steps.weight).astype(np.int64))
    return times


def _is_timed_or_wait(name: str) -> bool:
    return name in DEVICE_TIME_FIELDS or any(name in group for group in WAITS)


def _take(columns: dict[str, IntColumn], names: tuple[str, ...], wanted: IntColumn) -> IntColumn:
    """Take this much from these fields, each in proportion to its size; returns what was taken."""
    held = sum(columns[name] for name in names)
    wanted = np.minimum(np.maximum(0, wanted), held)
    taken = np.zeros_like(wanted)
    for name in names:
        part = wanted * columns[name] // np.maximum(1, held)
        columns[name] = columns[name] - part
        taken += part
    return taken


RARE_ABOVE_NONE_RATIO = 0.5
"""Bursts in eval mode are validation if at most this share of the steps has one."""
RARE_ABOVE_USUAL_RATIO = 0.2
"""The same if every step has bursts (a teacher) and some steps have more of them."""

MIN_USUAL_RATIO = 0.1
"""Fewer steps without validation than this do not show what the others would be without it."""


@dataclass(frozen=True, slots=True, eq=False)
class ValidationTime:
    """Nanoseconds of each entry to move from the phase in the name to the phase validation."""

    from_input_wait_ns: IntColumn
    from_h2d_ns: IntColumn
    from_forward_ns: IntColumn
    from_other_ns: IntColumn
    passes: IntColumn
    """Validations that ended in each entry."""
    gap_extra_ns: Mapping[str, IntColumn]
    """By gap field, its excess over a usual entry: the source of ``from_other_ns``."""

    @property
    def is_validating(self) -> BoolColumn:
        found: BoolColumn = self.passes > 0
        return found

    @property
    def total_ns(self) -> IntColumn:
        return self.from_input_wait_ns + self.from_h2d_ns + self.from_forward_ns + self.from_other_ns


def find_validation(steps: Steps, *, plays: bool = False) -> ValidationTime:
    """The validation inside every step, zero if there is none.

    ``plays``: bursts in eval mode are rollouts, whose data is used for training.

    A burst of no-grad forwards is validation if it works on its own data (batches of a loader that does not feed
    backward, or in eval mode the same tensors again and again), or if such bursts recur at intervals longer than a step
    with the module in eval mode. No-grad forwards that the other steps have as well (a teacher in addition to the
    validation) stay where they are.
    """
    columns, weight = steps.columns, steps.weight
    eval_bursts = np.maximum(columns["bursts_eval_mode"], 0)
    rare = np.zeros_like(weight) if plays else _count_rare_eval_bursts(eval_bursts, weight)
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
    """Whether most steps take batches of a loader that does not feed backward and validate nothing: ``zip`` of a
    training loader with a loader that only gives a target."""
    others = np.maximum(steps.columns["batches"] - np.maximum(steps.columns["micro_batches"], 0), 0)
    taking = np.minimum(others, steps.weight)[~validation.is_validating]
    return int(taking.sum()) > RARE_ABOVE_NONE_RATIO * int(steps.weight.sum())


def validation_in_gaps(validation: ValidationTime, weight: IntColumn, base: BoolColumn) -> dict[str, float]:
    """Nanoseconds of validation in each gap field, as a mean per step of ``base``; fields without any are left out.

    Rows count the gaps inside a burst together. Each field gets its excess over other steps.
    """
    moved_ns = validation.from_other_ns[base].astype(np.float64)
    extra = {name: column[base].astype(np.float64) for name, column in validation.gap_extra_ns.items()}
    all_extra_ns = np.maximum(np.sum(list(extra.values()), axis=0), 1.0)
    steps_count = max(1, int(weight[base].sum()))
    found = {name: float((moved_ns * column / all_extra_ns).sum()) / steps_count for name, column in extra.items()}
    return {name: ns for name, ns in found.items() if ns > 0}


def _count_rare_eval_bursts(eval_bursts: IntColumn, weight: IntColumn) -> IntColumn:
    """Bursts of each entry beyond the usual ones; zeros if too many steps have such bursts for validation."""
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


FIELD_PHASE = {
    "input_wait_ns": "input_wait",
    "iterator_ns": "input_wait",
    "h2d_ns": "h2d",
    "forward_ns": "forward",
    "nograd_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "communication_ns": "communication",
    "checkpoint_ns": "checkpoint",
    **dict.fromkeys(GAP_FIELDS, "other"),
}
"""The phase that every time field of a row belongs to, before validation is taken out."""


def split_phases(steps: Steps, validation: ValidationTime) -> dict[str, IntColumn]:
    """Nanoseconds of every phase in every entry, in the order of PHASES."""
    phases = {name: np.zeros(len(steps.weight), dtype=np.int64) for name in PHASES}
    for field_name, phase in FIELD_PHASE.items():
        phases[phase] += steps.columns[field_name]
    phases["input_wait"] -= validation.from_input_wait_ns
    phases["h2d"] -= validation.from_h2d_ns
    phases["forward"] -= validation.from_forward_ns
    phases["other"] -= validation.from_other_ns
    phases["validation"] += validation.total_ns
    total = np.sum(list(phases.values()), axis=0)
    if not np.array_equal(total, steps.step_ns):
        raise InvariantError("the phases of a step do not sum to the step")
    return phases


def build_breakdown(phases: Mapping[str, IntColumn], weight: IntColumn, base: BoolColumn) -> Breakdown:
    """How the time of the entries of ``base`` divides. A base without any time counts as ``other``."""
    kept = {name: column[base] for name, column in phases.items()}
    all_ns = sum(int(column.sum()) for column in kept.values())
    if all_ns == 0:
        nothing = np.zeros(1, dtype=np.int64)
        one = np.ones(1, dtype=np.int64)
        return Breakdown({name: describe_phase(one if name == "other" else nothing, one, 1) for name in PHASES})
    return Breakdown({name: describe_phase(kept[name], weight[base], all_ns) for name in PHASES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The time after the last step. Both None if the recording breaks off."""

    ns: int | None
    phase: str | None
    """Phase of more than half of it; None if there is none, or its work is in no phase."""
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    """The phases that were seen in it."""


def find_tail(steps: Steps) -> Tail:
    """From the recording's last row."""
    if steps.tail is None:
        return Tail(ns=None, phase=None)
    tail = {name: max(0, value) for name, value in steps.tail.items()}
    phase_ns = _phases_of(tail)
    if tail["bursts_other_loader"] or tail["bursts_eval_mode"]:
        moved = {"input_wait": "burst_input_ns", "h2d": "burst_h2d_ns", "forward": "nograd_ns", "other": "burst_gap_ns"}
        for phase, field in moved.items():
            part_ns = min(tail[field], phase_ns[phase])
            phase_ns[phase] -= part_ns
            phase_ns["validation"] += part_ns
    return Tail(ns=steps.tail_ns, phase=_main_phase(phase_ns), phase_ns={k: v for k, v in phase_ns.items() if v > 0})


def _phases_of(fields: Mapping[str, int]) -> Counter[str]:
    phases: Counter[str] = Counter()
    for name, phase in FIELD_PHASE.items():
        phases[phase] += fields.get(name, 0)
    return phases


def _main_phase(phases: Mapping[str, int]) -> str | None:
    half = sum(phases.values()) / 2
    return next((name for name, part in phases.items() if name != "other" and part > half), None)
