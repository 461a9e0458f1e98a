"""Several short samples in one row, each with positions of its own and blind to the others:
`hotloop.pack_sequences(sequences, length)` in `collate_fn`, and `model(**packed.inputs_for(model))` in the loop. Each
token's loss is the one that it has alone. A model whose `forward` takes no `position_ids` or `attention_mask` is
refused: its samples would see each other. Causal language models only. A batch then has fewer rows, so raise the
number of samples by what the padding was. Advised by `padding-waste`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="pack-sequences",
    summary="pack several samples into one row, apart from each other by positions and mask",
    effort="medium",
    numerics=Numerics.REORDERED,
)
