"""Find out what the slow rank does more of, or on what slower core or device it runs: uneven shards, longer samples,
another program beside it. Deal the samples out by their cost, not by their count. Which samples meet in a batch may
change. Advised by `straggler`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="balance-ranks",
    summary="give every rank the same work, or move work off the slow one",
    effort="hard",
    numerics=Numerics.RESAMPLED,
    numerics_note=", or exact where no data moves",
)
