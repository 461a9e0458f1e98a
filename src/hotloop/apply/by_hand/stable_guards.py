"""stable-guards: keep Python values that change out of compiled code."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class StableGuards(Act):
    """
    Pass Python numbers that change (a step count, a learning rate) as tensors, or keep them out of the compiled
    function. `TORCH_LOGS=recompiles` names the guard that failed. Rounding may differ. Advised by `recompilation`.
    """

    id = "stable-guards"
    summary = "keep Python values that change out of compiled code"
    effort = "medium"
    numerics = Numerics.REORDERED


ACT = StableGuards()
