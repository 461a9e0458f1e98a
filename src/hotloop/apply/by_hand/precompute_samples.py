"""Do the fixed part of each sample's work once, ahead of the training: decode, resize or tokenise, store the result
(`torch.save`, `numpy.memmap`, `datasets.Dataset.map`), and let `__getitem__` only read it. Leave out whatever draws
random numbers: stored augmentation is frozen, and every epoch sees the same samples. Where samples draw none at all,
`cache-samples` does this while the training runs. Advised by `input-bound`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="precompute-samples",
    summary="do the work that is the same in every epoch once, before the training",
    effort="hard",
    numerics=Numerics.RESAMPLED,
    numerics_note=", or exact if samples draw no random numbers",
)
