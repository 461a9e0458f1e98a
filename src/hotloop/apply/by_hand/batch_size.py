"""Raise the batch size towards the memory that lies idle, and tune the learning rate again: fewer and larger updates
are another training. Advised by `memory-headroom`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="batch-size",
    summary="use memory that lies idle for a larger batch",
    effort="easy",
    numerics=Numerics.LOSSY,
)
