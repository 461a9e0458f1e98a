"""detach-kept-tensors: keep numbers or detached tensors, not tensors with their graph."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class DetachKeptTensors(Act):
    """
    Keep `loss.item()` or `loss.detach()`, not `loss`: a kept loss holds the whole graph of its step. The same holds for
    outputs in lists and attributes. Advised by `memory-growth`. The numbers stay the same.
    """

    id = "detach-kept-tensors"
    summary = "keep numbers or detached tensors, not tensors with their graph"
    effort = "easy"
    numerics = Numerics.EXACT


ACT = DetachKeptTensors()
