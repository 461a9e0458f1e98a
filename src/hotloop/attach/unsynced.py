"""DistributedDataParallel -> the same without gradient synchronisation: for timing alone, the ranks train apart.

What ``no_sync`` does, for the whole run. At every forward, because scripts that accumulate set the attribute too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .sites import Site

FORWARD = Site(id="ddp-forward", module="torch.nn.parallel.distributed", path="DistributedDataParallel.forward")


def wrap_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """DistributedDataParallel.forward, which decides whether the next backward reduces gradients."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.require_backward_grad_sync = False
        return original(self, *args, **kwargs)

    return forward
