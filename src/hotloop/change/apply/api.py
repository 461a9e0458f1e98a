"""The same techniques by API: objects in, objects out, and a record of what was done to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.applier import Applier, make_context
from hotloop.change.apply.strategy_check import check_strategy
from hotloop.core.applied import AppliedTechnique
from hotloop.core.strategy import Strategy, load_strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedStrategy:
    """The objects to train with, and what was done. ``undo()`` reverts everything that can be reverted."""

    model: Any
    optimizer: Any
    loader: Any
    records: tuple[AppliedTechnique, ...]
    applier: Applier = field(repr=False)

    def undo(self) -> None:
        self.applier.undo()

    @property
    def scaler(self) -> Any:
        """The GradScaler that fp16-autocast created for the loop (scale the loss and step with it), or None."""
        return self.applier.context.memory("fp16-autocast").get("scaler")

    def after_step(self) -> None:
        """For techniques that act between steps (scheduled garbage collection); call it after each."""
        self.applier.after_step()


def apply_strategy(
    strategy: Strategy | str | Path,
    *,
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    scaler: Any = None,
) -> AppliedStrategy:
    """Apply a strategy (or a TOML file) to the objects of a training script, before its first step.

    Use the returned objects: most are the given ones, changed in place. Objects to which nothing applies stay as they
    are, and ``records`` says why. Raises StrategyError for unknown keys, impossible values and conflicts.
    """
    chosen = strategy if isinstance(strategy, Strategy) else load_strategy(strategy)
    check_strategy(chosen, TECHNIQUES)
    applier = Applier(chosen, TECHNIQUES, make_context(chosen, from_outside=False))
    applier.start()
    if loader is not None:
        loader = applier.loader_built(loader)
    if scaler is not None:
        applier.scaler_built(scaler)
    if optimizer is not None:
        applier.optimizer_built(optimizer)
        applier.waiting.clear()
    if model is not None:
        model = applier.model_met(model)
    if optimizer is not None:
        optimizer = applier.change_optimizer(optimizer)
    applier.finish()
    return AppliedStrategy(
        model=model, optimizer=optimizer, loader=loader, records=tuple(applier.records), applier=applier
    )
