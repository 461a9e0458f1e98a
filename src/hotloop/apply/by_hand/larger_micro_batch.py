"""larger-micro-batch: use fewer and larger micro-batches."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class LargerMicroBatch(Act):
    """
    With gradient accumulation, double the micro-batch and halve their number: the batch of an update stays the same,
    and so does the gradient up to rounding. Advised by `small-batch`.
    """

    id = "larger-micro-batch"
    summary = "use fewer and larger micro-batches"
    effort = "easy"
    numerics = Numerics.REORDERED


ACT = LargerMicroBatch()
