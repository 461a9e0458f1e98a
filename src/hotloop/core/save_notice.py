"""How early a training has to save before its end: one formula for launches and for advice."""

from __future__ import annotations

from math import ceil

MARGIN_FACTOR = 2.0
"""A save under pressure may take longer than the measured one: other jobs that stop write to the same storage."""
MARGIN_S = 10.0
"""For the signal to arrive, and for the ranks to agree on a step (about two seconds in hotloop's Trainer)."""


def find_notice_s(save_s: float, step_s: float = 0.0) -> int:
    """Whole seconds: twice the save and the step that has to end before it, plus ``MARGIN_S``.

    >>> find_notice_s(120)
    250
    """
    return ceil(MARGIN_FACTOR * (save_s + step_s) + MARGIN_S)
