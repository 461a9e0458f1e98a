"""batch-size: use memory that lies idle for a larger batch."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class BatchSize(Act):
    """
    Raise the batch size until the free memory is used, and tune the learning rate again: fewer and larger updates
    change the training. Advised by `memory-headroom`.
    """

    id = "batch-size"
    summary = "use free memory for a larger batch"
    effort = "easy"
    numerics = Numerics.LOSSY


ACT = BatchSize()
