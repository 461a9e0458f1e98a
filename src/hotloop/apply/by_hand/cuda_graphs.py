"""Compile with `torch.compile(model, mode="reduce-overhead")`, or capture the step with
`torch.cuda.graphs.make_graphed_callables`. Shapes and addresses must stay the same from step to step, and no step
may wait for the device. Advised by `launch-bound`. Rounding may differ under `torch.compile`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="cuda-graphs",
    summary='record the launches of a step once and replay them (`torch.compile(mode="reduce-overhead")`)',
    effort="medium",
    numerics=Numerics.EXACT,
)
