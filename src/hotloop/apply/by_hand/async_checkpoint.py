"""Save with `torch.distributed.checkpoint.async_save`, or copy the state to host memory inside the step and let a
thread write it. It needs memory for one more copy of the state. Where that is too much, save less often. Advised by
`blocking-checkpoint`. The numbers of the training stay the same."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="async-checkpoint",
    summary="copy the state inside the step and write it from a thread or process",
    effort="medium",
    numerics=Numerics.EXACT,
)
