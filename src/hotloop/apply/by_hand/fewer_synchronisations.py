"""Accumulate gradients over several micro-batches under `model.no_sync()`, or take larger batches. With more samples
an update it is another training: tune the learning rate again. Advised by `exposed-communication`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="fewer-synchronisations",
    summary="exchange gradients less often, or larger batches",
    effort="medium",
    numerics=Numerics.REORDERED,
)
