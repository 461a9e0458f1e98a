"""Inputs of outermost forwards -> whether a forward computes again what another one just computed.

Validation of the batch that was trained on, metrics after the optimizer's step, a second forward for nothing: all
compared by the identity of tensors and by their version, never by their values.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from hotloop.core.recording import FIELD, UNKNOWN

from . import batches
from .recorder import BACKWARDS, FORWARD, Recorder

REPEATED = FIELD["repeated_forwards"]
REPEATED_NS = FIELD["repeated_forward_ns"]
REPEATED_BACKWARDS = FIELD["repeated_backwards"]

_Sight = tuple[int, "weakref.ref[Any]", bool, int, bool, int]
"""A forward: module, its first tensor, without gradients, row, training mode, version of that tensor (and weights)."""

MOST_COMPUTED = 64
"""Of so many modules the last forward with gradients is remembered."""


class Repeats:
    """What the last forwards were given. ``same_mode_count`` are the forwards that repeated another one in its mode."""

    def __init__(self, recorder: Recorder, updates_of: Callable[[Any], int]) -> None:
        self._recorder = recorder
        self._updates_of = updates_of
        self.reset()

    def reset(self) -> None:
        """Forget everything, as in a freshly forked child."""
        self._seen: list[_Sight] = []
        self._computed: dict[int, tuple[tuple[Any, ...], int, tuple[weakref.ref[Any], ...], bool]] = {}
        self._maybe_metrics: tuple[int, int, int, int] = (0, UNKNOWN, 0, 0)
        self._random_state: torch.Tensor | None = None
        self._draws: dict[int, bool] = {}
        """Whether a model's repeated forward drew random numbers, by the model's identity."""
        self.same_mode_count = 0

    def look(self, module: Any, args: Any, kwargs: Any, nograd: bool, learns: bool) -> int | None:
        """Now, in ns, when the module already computed the same input in this row, or in the one before for metrics."""
        tensor = None
        for value in args or kwargs.values():
            if isinstance(value, torch.Tensor):
                tensor = value
                break
        if tensor is None:
            return None
        key, row, mode, version = id(module), self._recorder.rows, module.training, 0
        seen = [entry for entry in self._seen if entry[0] == key and entry[1]() is tensor]
        answered = False
        if nograd and not mode:
            version = 0 if tensor.is_inference() else tensor._version
            if learns:
                self._note_evaluation(seen, row, version)
            elif len(args) + len(kwargs) == 1:  # a second input (a time, an action) may be another one each time
                version += sum(0 if p.is_inference() else p._version for p in islice(module.parameters(), 1))
                answered = _is_answered_again(seen, row, version)
        # What every step trains on (a graph, a full batch) is no batch that comes back: a forward of it after the
        # optimizer's step looks at new weights, and one in the other mode computes something else.
        is_lasting = len({entry[3] for entry in seen if not entry[2]}) > 1
        known = answered or (not nograd and learns and self._is_computed_again(module, key, args, kwargs))
        known = known or any(
            was_nograd != nograd
            # A forward for metrics often comes after the optimizer's step: the previous row counts too.
            and ((seen_row == row and seen_mode == mode) if is_lasting else 0 <= row - seen_row <= int(nograd))
            for _, _, was_nograd, seen_row, seen_mode, _ in seen
        )
        if len(self._seen) >= 64:
            self._seen = [seen for seen in self._seen if row - seen[3] <= 1][-32:]
        self._seen.append((key, weakref.ref(tensor), nograd, row, mode, version))
        return time.perf_counter_ns() if known else None

    def _is_computed_again(self, module: Any, key: int, args: Any, kwargs: Any) -> bool:
        """Whether the module's forward with gradients just before had the same inputs, weights and mode.

        All inputs must be tensors that can be compared by identity, and the weights a parameter that learns and tells
        its changes by its version. With several optimizers the weights outlive the row that another one's step closed.
        """
        inputs = (*args, *kwargs.values())
        if not all(isinstance(value, torch.Tensor) and not value.is_inference() for value in inputs):
            return False
        weight = next((p for p in module.parameters() if p.requires_grad), None)
        if type(weight) is not torch.nn.Parameter or weight.is_inference():  # others were put in for this call
            return False
        row, optimizers_count = self._recorder.rows, len(self._recorder.optimizers)
        version = weight._version + self._updates_of(weight)
        state = (module.training, id(weight), version, *((id(t), t._version) for t in inputs))
        before = self._computed.get(key)
        stays = before is not None and before[0][3:] == state[3:]
        if not stays:
            self._confirm_metrics(key)
        # The references keep an identity from being given to another tensor meanwhile.
        self._computed[key] = (state, row, tuple(weakref.ref(t) for t in inputs), stays)
        if len(self._computed) > MOST_COMPUTED:
            self._computed.clear()
        if before is None or any(ref() is None for ref in before[2]):
            return False
        if before[0] != state:
            # The batch that the row before trained on last, with the weights of after its step: maybe for metrics.
            if row - before[1] == 1 and stays and not before[3]:
                self._maybe_metrics = (key, row, self._recorder.row[BACKWARDS], self._recorder.row[FORWARD])
            return False
        if row - before[1] > (1 if optimizers_count > 1 else 0):
            return False
        self.same_mode_count += 1
        if key not in self._draws:
            self._random_state = torch.get_rng_state()
        return True

    def end(self, module: Any, result: Any, spent_ns: int) -> None:
        """A forward of the same input has ended. If it drew random numbers and goes backward too, it repeats nothing.

        Two passes through dropout on purpose (SimCSE, R-Drop), or two draws of a latent, are two different results.
        Only the backward can tell them from a second forward for metrics: the result's node says when it is reached.
        A pass that drew nothing and goes backward is counted: its backward repeats another one as well.
        """
        key, before = id(module), self._random_state
        if before is not None:
            self._random_state = None
            if len(self._draws) > MOST_COMPUTED:
                self._draws.clear()
            self._draws[key] = not torch.equal(before, torch.get_rng_state()) or any(
                part.training and (getattr(part, "p", 0) or getattr(part, "drop_prob", 0))
                for part in module.modules()
                if "Drop" in type(part).__name__
            )
        tensor = batches.first_tensor(result)
        if tensor is None or tensor.grad_fn is None:
            return
        recorder, row, left = self._recorder, self._recorder.rows, [spent_ns]

        def take_back(_gradients: Any) -> None:
            if left and recorder.rows == row:
                recorder.row[REPEATED] -= 1
                recorder.row[REPEATED_NS] -= left.pop()

        def count_backward(_gradients: Any) -> None:
            if left and recorder.rows == row:
                recorder.row[REPEATED_BACKWARDS] += 1
                left.clear()

        tensor.grad_fn.register_prehook(take_back if self._draws.get(key) else count_backward)

    def _confirm_metrics(self, key: int) -> None:
        """A forward of the row before's batch was for metrics when the next batch comes without a backward between."""
        row = self._recorder.row
        if self._maybe_metrics[:3] == (key, self._recorder.rows, row[BACKWARDS]):
            row[REPEATED] += 1
            row[REPEATED_NS] += row[FORWARD] - self._maybe_metrics[3]
            self.same_mode_count += 1
        self._maybe_metrics = (0, UNKNOWN, 0, 0)

    def _note_evaluation(self, seen: list[_Sight], row: int, v: int) -> None:
        """The model that is trained, in eval mode: on data that stays the same, what it answers is only looked at."""
        burst = self._recorder.burst
        if burst is None:
            return
        for _, _, was_nograd, seen_row, seen_mode, version in reversed(seen):
            if was_nograd and seen_row < row:
                burst.own_data += not seen_mode and version == v
                return


def _is_answered_again(seen: list[_Sight], row: int, version: int) -> bool:
    """Whether a model that does not learn (a teacher, frozen features) has answered this input in this step already.

    In eval mode, without gradients, with the same weights. A forward for metrics comes after the optimizer's step, so
    the row before counts too, but not for an input that every step gives.
    """
    rows = {
        seen_row
        for _, _, was_nograd, seen_row, seen_mode, seen_version in seen
        if was_nograd and not seen_mode and seen_version == version
    }
    return row in rows or (row - 1 in rows and len({entry[3] for entry in seen}) == 1)
