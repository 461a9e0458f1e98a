"""sum-losses: one backward for the sum of the losses."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class SumLosses(Act):
    """
    Call `(loss_a + loss_b).backward()` once, in place of a backward for each loss. Gradients agree up to rounding. Not
    where each loss's own gradient is needed. Advised by `redundant-compute`.
    """

    id = "sum-losses"
    summary = "one backward for the sum of the losses"
    effort = "easy"
    numerics = Numerics.REORDERED


ACT = SumLosses()
