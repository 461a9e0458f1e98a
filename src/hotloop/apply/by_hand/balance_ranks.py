"""balance-ranks: give every rank the same work, or move work off the slow one."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class BalanceRanks(Act):
    """
    Find out why the slow rank is slow. It may do more work (uneven shards, longer samples), run on a slower device, or
    share its cores with another program. Distribute samples by cost, not by count. The composition of batches may
    change. Advised by `straggler`.
    """

    id = "balance-ranks"
    summary = "give every rank the same work, or move work off the slow one"
    effort = "hard"
    numerics = Numerics.RESAMPLED
    numerics_note = ", or exact if no data moves"


ACT = BalanceRanks()
