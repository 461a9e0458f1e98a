"""Steps -> the nine phases of every step, which sum to the step exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hotloop.core.errors import InvariantError
from hotloop.core.phases import PHASES, Breakdown
from hotloop.core.recording import GAP_FIELDS

from .segments import BoolColumn, IntColumn, Steps
from .stats import describe_phase
from .validation import ValidationTime

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
    """Where the entries of ``base`` went. A base without any time counts as ``other``."""
    kept = {name: column[base] for name, column in phases.items()}
    all_ns = sum(int(column.sum()) for column in kept.values())
    if all_ns == 0:
        nothing = np.zeros(1, dtype=np.int64)
        one = np.ones(1, dtype=np.int64)
        return Breakdown({name: describe_phase(one if name == "other" else nothing, one, 1) for name in PHASES})
    return Breakdown({name: describe_phase(kept[name], weight[base], all_ns) for name in PHASES})
