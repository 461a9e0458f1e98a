"""The time of a tuning in its parts: the first look, the search, and what is kept to run the patched source."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .trials import TrialLimits

OBSERVE_RATIO = 0.1
"""Share of the budget that the first look may take for its steps, within these seconds."""
OBSERVE_S = (3.0, 30.0)
PATCH_RATIO = 0.15
"""Share of the budget that is kept for running the patched source, where a patch is made."""
NEXT_FACTOR = 3
"""The budget that a report suggests where this one was too small, over this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``whole_s`` seconds from ``begun_s`` on (a reading of the clock); ``kept_ratio`` of them are kept for a patch."""

    whole_s: float
    begun_s: float = 0.0
    kept_ratio: float = 0.0

    @property
    def until_s(self) -> float:
        """When everything ends."""
        return self.begun_s + self.whole_s

    @property
    def search_until_s(self) -> float:
        """When the search for a strategy ends."""
        return self.until_s - self.kept_ratio * self.whole_s

    @property
    def observation(self) -> TrialLimits:
        """How long the first look at the unchanged command may take."""
        return TrialLimits(
            steps=None,
            seconds=min(max(OBSERVE_S[0], OBSERVE_RATIO * self.whole_s), OBSERVE_S[1]),
            timeout_s=max(60.0, 0.5 * self.whole_s),
            start_s=max(60.0, 0.4 * self.whole_s),
            stall_s=max(30.0, 0.2 * self.whole_s),
        )

    @property
    def next_minutes(self) -> int:
        """The budget of a tuning that goes on where this one stopped for want of time."""
        return math.ceil(NEXT_FACTOR * self.whole_s / 60)
