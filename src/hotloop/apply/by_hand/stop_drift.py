"""Find what piles up in the phase that grows: hooks registered again, a list that is walked, a graph that is kept. For
an optimizer on the CPU whose gradients have become zero, `torch.set_flush_denormal(True)` before training. Advised by
`phase-drift`. Flushed denormals change numbers below 1e-38 alone."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="stop-drift",
    summary="remove what makes a phase slower during the run",
    effort="medium",
    numerics=Numerics.REORDERED,
)
