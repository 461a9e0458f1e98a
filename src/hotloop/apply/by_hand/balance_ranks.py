"""Find out why the slow rank is slow. It may do more work (uneven shards, longer samples), run on a slower device, or
share its cores with another program. Distribute samples by cost, not by count. The composition of batches may change.
Advised by `straggler`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="balance-ranks",
    summary="give every rank the same work, or move work off the slow one",
    effort="hard",
    numerics=Numerics.RESAMPLED,
    numerics_note=", or exact if no data moves",
)
