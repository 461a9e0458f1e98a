"""validate-less-often: run one validation in N."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class ValidateLessOften(Act):
    """
    Validate every N steps or epochs (`eval_steps` of the Transformers Trainer, `val_check_interval` or
    `check_val_every_n_epoch` of Lightning), or on a fixed part of the set in between. Early stopping reacts later.
    Advised by `frequent-validation`. The weights stay the same.
    """

    id = "validate-less-often"
    summary = "skip validations: run one in N"
    effort = "easy"
    numerics = Numerics.EXACT


ACT = ValidateLessOften()
