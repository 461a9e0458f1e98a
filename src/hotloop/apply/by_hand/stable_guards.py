"""Pass Python numbers that change (a step count, a learning rate) as tensors, or keep them out of the compiled
function. `TORCH_LOGS=recompiles` names the guard that failed. Rounding may differ. Advised by `recompilation`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="stable-guards",
    summary="keep Python values that change out of compiled code",
    effort="medium",
    numerics=Numerics.REORDERED,
)
