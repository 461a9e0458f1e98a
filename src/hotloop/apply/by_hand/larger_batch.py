"""larger-batch: train on more samples per step."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class LargerBatch(Act):
    """
    Raise the batch size while memory allows it, and tune the learning rate again: fewer and larger updates change the
    training. If the steps wait for input, fix that first. Advised by `small-batch`.
    """

    id = "larger-batch"
    summary = "train on more samples per step"
    effort = "easy"
    numerics = Numerics.LOSSY


ACT = LargerBatch()
