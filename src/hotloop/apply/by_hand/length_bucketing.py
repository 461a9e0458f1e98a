"""Let a batch sampler group samples of similar length: sort windows of, say, 50 batches by length, cut them into
batches, and shuffle the batches. With the Transformers Trainer it is an option of `TrainingArguments`
(`group_by_length=True`, in newer versions `train_sampling_strategy="group_by_length"`). Which samples meet in a batch
changes. Advised by `padding-waste`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="length-bucketing",
    summary="put samples of similar length into a batch",
    effort="medium",
    numerics=Numerics.RESAMPLED,
)
