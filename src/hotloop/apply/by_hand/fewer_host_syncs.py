"""fewer-host-syncs: keep values on the device and read them back every N steps."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class FewerHostSyncs(Act):
    """
    Add up `loss.detach()` on the device and call `.item()` every N steps. Replace boolean masks by `torch.where`, and
    copies by `non_blocking=True` from pinned memory. Advised by `host-sync`. The numbers stay the same.
    """

    id = "fewer-host-syncs"
    summary = "keep values on the device and read them back every N steps"
    effort = "medium"
    numerics = Numerics.EXACT


ACT = FewerHostSyncs()
