"""Call `(loss_a + loss_b).backward()` once instead of a backward per loss. Gradients agree up to rounding. Not for
trainings that need each loss's own gradient. Advised by `redundant-compute`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="sum-losses",
    summary="run one backward for the sum of the losses",
    effort="easy",
    numerics=Numerics.REORDERED,
)
