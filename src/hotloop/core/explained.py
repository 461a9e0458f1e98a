"""Explained: the four parts of a step."""

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
