"""Explained: the four parts of a step; RunParts: the five of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Shares of the steady step's wall time on the lead rank; they sum to 1."""

    model_ratio: float
    """Forward, backward, optimizer, copies and collectives that no finding blames."""
    named_ratio: float
    """What a finding of a specific rule owns."""
    your_code_ratio: float
    """Lines of the script's that are known; whether the training needs them is not."""
    unknown_ratio: float
    """No evidence tells what it was spent on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Shares of the wall time of the lead rank's run, from the import of torch to its end; they sum to 1."""

    start_ratio: float
    """Before the first step's end, beyond a usual step."""
    training_ratio: float
    """Training steps, warm-up included, without the validations and checkpoints in them."""
    validation_ratio: float
    checkpoint_ratio: float
    end_ratio: float
    """After the last step: all that is no validation and no checkpoint."""
