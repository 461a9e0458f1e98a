"""Move the work from the loop body into `__getitem__` or `collate_fn`, and give the DataLoader `num_workers`. Random
draws then come from the workers' generators. Advised by `preprocessing-in-loop`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="preprocess-in-workers",
    summary="move work from the loop body into the dataset or `collate_fn`, which workers run",
    effort="medium",
    numerics=Numerics.RESAMPLED,
)
