"""Steps of one process -> when they ended, on the clock of its recording: what ranks have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .segments import IntColumn, Steps

MOST_ENDS = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class StepEnds:
    """At most about MOST_ENDS steps, evenly drawn; ranks of one training draw the same ones."""

    row: IntColumn
    """Number of the last row of each step: the same step has the same number on every rank."""
    done: IntColumn
    """Steps completed with it."""
    marks_ns: npt.NDArray[np.int64]
    """n x 3: when the step ended, when its optimizer began, when its backward ended."""
    saved_after: int | None
    """Steps that were completed at the last checkpoint that was seen; None without any."""

    def at_step(self, done: float) -> float:
        """Clock of the recording, in ns, when so many steps were completed; the nearest one that is known."""
        return float(np.interp(done, self.done, self.marks_ns[:, 0]))


def find_step_ends(steps: Steps) -> StepEnds:
    """The last is exact; of a block, optimizer and gap are means of its steps."""
    columns, done = steps.columns, np.cumsum(steps.weight)
    saved = np.flatnonzero(columns["checkpoints"] > 0)
    saved_after = int(done[saved[-1]] - steps.weight[saved[-1]]) if len(saved) else None
    if steps.tail is not None and steps.tail["checkpoints"] > 0:
        saved_after = int(done[-1])
    stride = 1
    while len(done) > stride * MOST_ENDS:
        stride *= 2
    # By number and not by place: lost rows of one rank must not shift it against the others.
    drawn = np.arange(len(done)) if stride == 1 else np.flatnonzero((steps.last_row + 1) % stride == 0)
    drawn = np.union1d(drawn, [len(done) - 1])
    end = columns["end_ns"][drawn]
    weight = steps.weight[drawn]
    optimizer = end - columns["optimizer_ns"][drawn] // weight
    # With several micro-batches the gaps after backward lie between them too.
    single = columns["backwards"][drawn] == weight
    backward = np.where(single, optimizer - columns["after_backward_ns"][drawn] // weight, optimizer)
    return StepEnds(
        row=steps.last_row[drawn],
        done=done[drawn],
        marks_ns=np.stack([end, optimizer, backward], axis=1),
        saved_after=saved_after,
    )
