"""Interned names -> flags: which events have a name that a pattern finds."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from hotloop.core.trace import Trace

TORCH_RANGE = re.compile(
    r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.forward$)"
)
"""Ranges that torch draws. Releases before 1.12 write them as operators, newer ones as user annotations."""


def match_names(trace: Trace, name: NDArray[np.int32], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Whether the pattern occurs in each name; every distinct name is looked at once."""
    used = np.zeros(len(trace.names), dtype=bool)
    used[name] = True
    hit = np.zeros(len(trace.names), dtype=bool)
    for one in np.flatnonzero(used).tolist():
        hit[one] = pattern.search(trace.names[one]) is not None
    return hit[name]
