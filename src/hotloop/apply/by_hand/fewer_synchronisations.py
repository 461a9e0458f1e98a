"""Accumulate gradients over several micro-batches under `model.no_sync()`, or take larger batches. With more samples
per update, tune the learning rate again. Advised by `exposed-communication`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="fewer-synchronisations",
    summary="synchronise gradients less often, or use larger batches",
    effort="medium",
    numerics=Numerics.REORDERED,
)
