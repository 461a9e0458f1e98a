"""sum-losses: one backward for the sum of the losses."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class SumLosses(Act):
    """
    Call `(loss_a + loss_b).backward()` once instead of a backward per loss. Gradients agree up to rounding. Not for
    trainings that need each loss's own gradient. Advised by `redundant-compute`.
    """

    id = "sum-losses"
    summary = "run one backward for the sum of the losses"
    effort = "easy"
    numerics = Numerics.REORDERED


ACT = SumLosses()
