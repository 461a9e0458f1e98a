"""The newest rows of a process -> one line: rate, shares of the largest phases, and the phase that leads."""

from __future__ import annotations

import numpy as np

from hotloop.core.recording import CLOSED_BY_BACKWARD, CLOSED_BY_END, FIELD, GAP_FIELDS

from .segments import IntColumn

_PHASE_FIELDS = {
    "input wait": ("input_wait_ns", "iterator_ns"),
    "copies": ("h2d_ns",),
    "forward": ("forward_ns", "nograd_ns"),
    "backward": ("backward_ns",),
    "optimizer": ("optimizer_ns",),
    "communication": ("communication_ns",),
    "checkpoint": ("checkpoint_ns",),
    "other": GAP_FIELDS,
}


def count_backward_rows(rows: IntColumn) -> int:
    """Rows that a backward closed because no optimizer was seen yet: no optimizer steps, where one follows."""
    return int((rows[:, FIELD["closed_by"]] == CLOSED_BY_BACKWARD).sum())


def describe_recent(rows: IntColumn, backward_rows_count: int = 0) -> str:
    """One line about these rows (n x STEP_FIELDS), such as '120 optimizer steps, 14.2 per s: backward 41%'.

    ``backward_rows_count`` is that of all rows from the first on, these included.
    """
    rows = rows[rows[:, FIELD["closed_by"]] != CLOSED_BY_END]
    if not len(rows):
        return ""
    total_ns = int((rows[:, FIELD["end_ns"]] - rows[:, FIELD["start_ns"]]).sum())
    steps = int(rows[:, FIELD["rows_merged"]].sum())
    last = int(rows[-1, FIELD["index"]] + rows[-1, FIELD["rows_merged"]])
    if rows[-1, FIELD["closed_by"]] != CLOSED_BY_BACKWARD:
        last -= backward_rows_count
        steps -= count_backward_rows(rows)
    if total_ns <= 0:
        return ""
    shares = {
        name: float(np.sum([rows[:, FIELD[f]].sum() for f in fields])) / total_ns
        for name, fields in _PHASE_FIELDS.items()
    }
    largest = sorted(shares.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {share:.0%}" for name, share in largest if share > 0.005)
    return f"{last} optimizer steps, {steps / (total_ns * 1e-9):.1f} per s: {parts}"
