"""Inputs of outermost forwards -> whether a forward computes again what another one just computed.

Validation of the batch that was trained on, metrics after the optimizer's step, a second forward for nothing: all
compared by the identity of tensors and by their version, never by their values.
"""

from __future__ import annotations

from typing import NamedTuple

from hotloop.core.events import ALL_TENSORS, DRAWS, HAS_INPUT, ON_DEVICE, OPAQUE, SAME_WEIGHTS, TRAINING
from hotloop.core.recording import FIELD, UNKNOWN

from .recorder import BACKWARDS, FORWARD, Recorder

REPEATED = FIELD["repeated_forwards"]
REPEATED_NS = FIELD["repeated_forward_ns"]
MOST_SEEN, MOST_COMPUTED = 64, 64
LASTING_ROWS = 256
"""An input that several rows trained on is considered a lasting one for this many rows more."""


class _Sight(NamedTuple):
    module: int
    tensor: tuple[int, int]
    without_gradients: bool
    row: int
    in_training: bool


class _Computed(NamedTuple):
    mode: bool
    steps: int
    inputs: tuple[int, int]
    row: int
    stays: bool
    backwards: int


class Repeats:
    """The inputs of the last forwards."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: list[_Sight] = []
        self._computed: dict[int, _Computed] = {}
        self._lasting: dict[tuple[int, tuple[int, int]], int] = {}
        """The last row that is known to have trained on an input of several rows: sights are forgotten earlier."""
        self._maybe_metrics: tuple[int, int, int, int] = (0, UNKNOWN, 0, 0)
        self._goes_backward = False
        self.batches = 0
        """Batches and copies to a device so far: memory of a device may hold something else after each."""
        self.steps = 0
        """Completed steps of any optimizer."""

    def look(self, module: int, flags: int, first: int, every: int, *, without_gradients: bool, learns: bool) -> bool:
        """Whether the module already computed the same input in this row, or in the previous row for metrics."""
        if not flags & HAS_INPUT:
            return False
        since = self.batches if flags & ON_DEVICE else 0
        tensor, row, in_training = (first, since), self._recorder.rows, bool(flags & TRAINING)
        seen = [sight for sight in self._seen if sight.module == module and sight.tensor == tensor]
        answered = False
        if without_gradients and not in_training:
            if learns:
                self._note_evaluation(seen, row)
            elif every == first:  # a second input (a time, an action) may be another one each time
                answered = _is_answered_again(seen, row)
        # What every step trains on (a graph, a full batch) is no batch that comes back: a forward of it after the
        # optimizer's step looks at new weights, and one in the other mode computes something else.
        if len({sight.row for sight in seen if not sight.without_gradients}) > 1:
            self._lasting[module, tensor] = row
        is_lasting = row - self._lasting.get((module, tensor), -LASTING_ROWS) < LASTING_ROWS
        known = answered
        if not without_gradients and learns and flags & ALL_TENSORS and every and not flags & OPAQUE:
            is_same = self._is_computed_again(module, in_training, (every, since), bool(flags & SAME_WEIGHTS))
            known = is_same and not (in_training and flags & DRAWS)
        known = known or any(
            sight.without_gradients != without_gradients
            # A forward for metrics often comes after the optimizer's step: the previous row counts too.
            and (
                (sight.row == row and sight.in_training == in_training)
                if is_lasting
                else 0 <= row - sight.row <= int(without_gradients)
            )
            for sight in seen
        )
        if len(self._seen) >= MOST_SEEN:
            self._seen = [sight for sight in self._seen if row - sight.row <= 1][-MOST_SEEN // 2 :]
            self._lasting = {key: at for key, at in self._lasting.items() if row - at < LASTING_ROWS}
        self._seen.append(_Sight(module, tensor, without_gradients, row, in_training))
        return known

    def _is_computed_again(self, module: int, mode: bool, inputs: tuple[int, int], keeps_weights: bool) -> bool:
        """Whether the module's forward with gradients just before had the same inputs, weights and mode.

        ``keeps_weights``: no optimizer's step since then changed them, so that it may belong to the row before.
        """
        row, before = self._recorder.rows, self._computed.get(module)
        stays = before is not None and before.inputs == inputs
        if not stays:
            self._confirm_metrics(module)
        backwards = self._recorder.row[BACKWARDS]
        self._computed[module] = _Computed(mode, self.steps, inputs, row, stays, backwards)
        if len(self._computed) > MOST_COMPUTED:
            self._computed.clear()
        if before is None:
            return False
        if keeps_weights and (before.mode, before.inputs) == (mode, inputs) and 0 <= row - before.row <= 1:
            self._goes_backward = row == before.row and backwards > before.backwards
            return True
        if (before.mode, before.steps, before.inputs) != (mode, self.steps, inputs):
            # The batch that the row before trained on last, with the weights of after its step: maybe for metrics.
            if row - before.row == 1 and stays and not before.stays:
                self._maybe_metrics = (module, row, backwards, self._recorder.row[FORWARD])
            return False
        self._goes_backward = row == before.row and backwards > before.backwards
        return row == before.row

    def backward_ended(self) -> None:
        """If two passes over one input each went backward, the second backward is a repeat as well."""
        if self._goes_backward:
            self._goes_backward = False
            self._recorder.row[FIELD["repeated_backwards"]] += 1

    def _confirm_metrics(self, module: int) -> None:
        """A forward of the row before's batch was for metrics when the next batch comes without a backward between."""
        row = self._recorder.row
        if self._maybe_metrics[:3] == (module, self._recorder.rows, row[BACKWARDS]):
            row[REPEATED] += 1
            row[REPEATED_NS] += row[FORWARD] - self._maybe_metrics[3]
        self._maybe_metrics = (0, UNKNOWN, 0, 0)

    def _note_evaluation(self, seen: list[_Sight], row: int) -> None:
        """The model that is trained, in eval mode, on data that stays the same: its outputs are only looked at."""
        burst = self._recorder.burst
        if burst is None:
            return
        for sight in reversed(seen):
            if sight.without_gradients and sight.row < row:
                burst.own_data += not sight.in_training
                return


def _is_answered_again(seen: list[_Sight], row: int) -> bool:
    """Whether a model that does not learn (a teacher, frozen features) has already processed this input in this step.

    In eval mode, without gradients. A forward for metrics comes after the optimizer's step, so the row before counts
    too, but not for an input that every step gives.
    """
    rows = {sight.row for sight in seen if sight.without_gradients and not sight.in_training}
    return row in rows or (row - 1 in rows and len({sight.row for sight in seen}) == 1)
