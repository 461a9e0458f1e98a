"""Pad in `collate_fn` to the longest sample of the batch, not to the model's maximum:
`torch.nn.utils.rnn.pad_sequence`, or `DataCollatorWithPadding(tokenizer)` of Transformers, with no padding in
`__getitem__`. Sums over other lengths may round differently. Advised by `padding-waste`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="pad-to-longest",
    summary="pad to the longest sample of the batch",
    effort="medium",
    numerics=Numerics.REORDERED,
)
