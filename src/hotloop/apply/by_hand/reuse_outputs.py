"""Keep the detached outputs of the training forward and compute the metrics from them; a second forward on the same
batch is not needed. Dropout and batch statistics of a pass in evaluation mode differ. Advised by
`redundant-compute`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="reuse-outputs",
    summary="reuse the outputs of the forward pass instead of running it again",
    effort="medium",
    numerics=Numerics.REORDERED,
    numerics_note=", or exact if only forwards repeat",
)
