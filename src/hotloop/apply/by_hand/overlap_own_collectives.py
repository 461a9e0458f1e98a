"""Start a collective with `async_op=True` and call `wait()` on its handle where the result is used; join many small
tensors into one. Advised by `exposed-communication`. Joined tensors may be summed in another order."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="overlap-own-collectives",
    summary="overlap your own collectives with computation, or send fewer of them",
    effort="medium",
    numerics=Numerics.REORDERED,
)
