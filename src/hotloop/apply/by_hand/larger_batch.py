"""Raise the batch size while memory allows it, and tune the learning rate again: fewer and larger updates change the
training. If the steps wait for input, fix that first. Advised by `small-batch`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__, id="larger-batch", summary="train on more samples per step", effort="easy", numerics=Numerics.LOSSY
)
