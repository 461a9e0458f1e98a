"""Write logs every N steps, keep the values as detached tensors until then, and let files be flushed by their buffer.
Advised by `logging-overhead`. The numbers stay the same."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__, id="log-less-often", summary="write logs and metrics every N steps", effort="easy", numerics=Numerics.EXACT
)
