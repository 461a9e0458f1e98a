"""Give the table `nn.Embedding(..., sparse=True)` and an optimizer that knows sparse gradients (`SparseAdam`, `SGD`,
`Adagrad`), and the other parameters their own optimizer. Advised by `dense-embedding-gradient`. Rows that are not used
keep their averages: the numbers change."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="sparse-gradients",
    summary="compute and apply the gradient of used rows only",
    effort="medium",
    numerics=Numerics.LOSSY,
)
