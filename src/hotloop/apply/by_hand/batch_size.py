"""batch-size: use memory that lies idle for a larger batch."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class BatchSize(Act):
    """
    Raise the batch size towards the memory that lies idle, and tune the learning rate again: fewer and larger updates
    are another training. Advised by `memory-headroom`.
    """

    id = "batch-size"
    summary = "use memory that lies idle for a larger batch"
    effort = "easy"
    numerics = Numerics.LOSSY


ACT = BatchSize()
