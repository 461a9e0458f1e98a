"""overlap-own-collectives: overlap your own collectives with computation, or send fewer of them."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class OverlapOwnCollectives(Act):
    """
    Start a collective with `async_op=True` and call `wait()` on its handle where the result is used; join many small
    tensors into one. Advised by `exposed-communication`. Joined tensors may be summed in another order.
    """

    id = "overlap-own-collectives"
    summary = "overlap your own collectives with computation, or send fewer of them"
    effort = "medium"
    numerics = Numerics.REORDERED


ACT = OverlapOwnCollectives()
