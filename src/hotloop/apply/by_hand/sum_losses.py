"""Call `(loss_a + loss_b).backward()` once, in place of a backward for each loss. Gradients agree up to rounding. Not
where each loss's own gradient is needed. Advised by `redundant-compute`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="sum-losses",
    summary="one backward for the sum of the losses",
    effort="easy",
    numerics=Numerics.REORDERED,
)
