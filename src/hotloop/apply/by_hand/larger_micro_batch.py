"""With gradient accumulation, double the micro-batch and halve their number: the batch of an update stays the same,
and so does the gradient up to rounding. Advised by `small-batch`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="larger-micro-batch",
    summary="use fewer and larger micro-batches",
    effort="easy",
    numerics=Numerics.REORDERED,
)
