"""Validate every N steps or epochs (`eval_steps` of the Transformers Trainer, `val_check_interval` or
`check_val_every_n_epoch` of Lightning), or on a fixed part of the set in between. Early stopping reacts later.
Advised by `frequent-validation`. The weights stay the same."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__, id="validate-less-often", summary="run one validation in N", effort="easy", numerics=Numerics.EXACT
)
