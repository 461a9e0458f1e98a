"""no-gc: Python's garbage collector is off."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from hotloop.core.ablations import Ablation
from hotloop.core.findings import Value
from hotloop.core.techniques import Applied, Context, Effect


class NoGc(Ablation):
    """
    ## What it does
    Disables the cyclic garbage collector; `gc.enable()` and `gc.collect()` in the script do nothing.
    """

    id = "no-gc"
    summary = "nothing is collected"
    leaves = "reference cycles stay in memory"

    def start(self, settings: Mapping[str, Value], context: Context) -> Effect:
        gc.disable()
        gc.enable = lambda: None
        gc.collect = lambda generation=2: 0
        return Applied(text="the garbage collector is off")
