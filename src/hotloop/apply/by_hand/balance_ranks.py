"""balance-ranks: give every rank the same work, or move work off the slow one."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class BalanceRanks(Act):
    """
    Find out what the slow rank does more of, or on what slower core or device it runs: uneven shards, longer samples,
    another program beside it. Deal the samples out by their cost, not by their count. Which samples meet in a batch may
    change. Advised by `straggler`.
    """

    id = "balance-ranks"
    summary = "give every rank the same work, or move work off the slow one"
    effort = "hard"
    numerics = Numerics.RESAMPLED
    numerics_note = ", or exact where no data moves"


ACT = BalanceRanks()
