"""Ablation: one cost of a step that a trial takes away, so that the time without it bounds what any fix can save."""

from __future__ import annotations

from typing import ClassVar

from .findings import Numerics
from .techniques import Stage, Technique


class Ablation(Technique):
    """An act of a trial that measures a bound, one file each in ``apply/ablations/``. It may train to wrong numbers.

    It is in no catalogue of techniques: no strategy can name it, and nothing offers it. A process in which it reports
    anything but Applied does not measure a bound: the reason of its NotApplicable is the reason why there is no bound.
    """

    numerics = Numerics.LOSSY
    stage = Stage.LOOP
    leaves: ClassVar[str]
    """What it takes away beyond the cost, or what it leaves of the cost; the report shows it with the bound."""
    edits_statements: ClassVar[bool] = False
    """Whether it leaves statements out of the working copy's source, and does nothing in the process."""
