"""Keep `loss.item()` or `loss.detach()`, not `loss`: a kept loss holds the whole graph of its step. The same holds for
outputs in lists and attributes. Advised by `memory-growth`. The numbers stay the same."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="detach-kept-tensors",
    summary="keep numbers or detached tensors, not tensors with their graph",
    effort="easy",
    numerics=Numerics.EXACT,
)
