"""Raise the batch size until the free memory is used, and tune the learning rate again: fewer and larger updates
change the training. Advised by `memory-headroom`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="batch-size",
    summary="use free memory for a larger batch",
    effort="easy",
    numerics=Numerics.LOSSY,
)
