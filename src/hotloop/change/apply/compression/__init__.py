"""Gradients with fewer bits between ranks: what is sent of a bucket, and the hooks of DDP that send it.

Every hook starts its collectives on the thread that calls it, in the order of the buckets, because gloo matches
collectives by order: a collective that starts in a future's callback runs in another order on each rank and aborts.
What a rank does not send it keeps (error feedback) and adds to its next gradient.
"""

from .blocks import Int8Hook
from .hooks import CastHook, GradientHook, TopKHook, WarmUpHook
from .low_rank import LowRankHook
from .methods import METHODS, hooks_of, make_hook, register

__all__ = [
    "METHODS",
    "CastHook",
    "GradientHook",
    "Int8Hook",
    "LowRankHook",
    "TopKHook",
    "WarmUpHook",
    "hooks_of",
    "make_hook",
    "register",
]
