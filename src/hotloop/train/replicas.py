"""A Trainer whose ranks hold weights of their own for some steps -> what of them is validated, kept and left.

With the technique ``local-updates``, ranks agree only straight after a round. Whatever others see of the training, a
validation, a checkpoint's model, the weights after ``fit``, is the mean of all ranks. A checkpoint keeps each rank's
own state beside it, from which training continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hotloop.apply.rounds import LocalRounds

from .checkpoint import Checkpoint, CheckpointError, load_model, model_state, restore_own

TREE = "replica"


class Replicas:
    """One Trainer's replicas; of one that trains without ``local-updates``, nothing happens here.

    Every method must be called by all ranks.
    """

    def __init__(self, rounds: LocalRounds | None, model: Any, optimizer: Any) -> None:
        self._rounds, self._model, self._optimizer = rounds, model, optimizer

    def mean_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the mean weights of all ranks."""
        return nullcontext() if self._rounds is None else self._rounds.mean_weights()

    def settle(self) -> None:
        """Leave the model with them."""
        if self._rounds is not None:
            self._rounds.settle()

    def own_trees(self) -> dict[str, Any]:
        """This rank's part of a checkpoint, asked for outside of ``mean_weights``; the weights in it are copies."""
        if self._rounds is None or not self._rounds.is_active:
            return {}
        weights = {name: one.detach().clone() for name, one in model_state(self._model).items()}
        state = {"model": weights, "optimizer": self._optimizer.state_dict(), "rounds": self._rounds.state_dict()}
        return {TREE: state}

    def restore(self, checkpoint: Checkpoint, world_size: int) -> None:
        """After the common state was loaded: this rank's own. Without ``local-updates``, and from a checkpoint without
        it, training continues from the common state. Raises CheckpointError on another number of ranks."""
        if self._rounds is None:
            return
        if not checkpoint.state.get("has_replicas"):
            self._rounds.made_steps = checkpoint.step  # the warm-up goes on, on any number of ranks
            return
        if checkpoint.world_size != world_size:
            raise CheckpointError(
                f"{checkpoint.path} holds the weights of {checkpoint.world_size} ranks that train on their own "
                f"(local-updates): continue on {checkpoint.world_size} ranks, or without local-updates, not on "
                f"{world_size}"
            )
        restore_own(checkpoint, {TREE: self})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What ``own_trees`` gave."""
        assert self._rounds is not None
        load_model(self._model, state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._rounds.load_state_dict(state["rounds"])
