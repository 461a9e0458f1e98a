"""Lower the batch size until the step fits, and tune the learning rate again: more and noisier updates change the
training. `accumulation` saves the same memory and keeps the batch. Advised by `out-of-memory`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__, id="smaller-batch", summary="train on fewer samples per step", effort="easy", numerics=Numerics.LOSSY
)
