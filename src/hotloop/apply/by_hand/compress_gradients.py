"""compress-gradients: send gradients with fewer bits."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class CompressGradients(Act):
    """
    Register a communication hook, such as
    `model.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)`. It
    rounds the gradients: compare the loss. Advised by `slow-link`.
    """

    id = "compress-gradients"
    summary = "send gradients with fewer bits"
    effort = "easy"
    numerics = Numerics.LOSSY


ACT = CompressGradients()
