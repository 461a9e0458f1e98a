"""The global random generators before and after a call -> whether it drew from one of them."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def random_states() -> tuple[Any, ...]:
    """The states of Python's, torch's and, where something has imported it, numpy's generator."""
    numpy_random = sys.modules.get("numpy.random")
    numpy_state: tuple[Any, ...] = ()
    if numpy_random is not None:
        kind, keys, *rest = numpy_random.get_state()
        numpy_state = (kind, keys.tobytes(), *rest)
    return random.getstate(), torch.get_rng_state(), numpy_state


def has_drawn(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Whether a generator moved; numpy's counts only where it was there before.

    >>> state = random_states()
    >>> has_drawn(state, random_states()), random.random() < 2, has_drawn(state, random_states())
    (False, True, True)
    """
    moved_numpy = bool(before[2]) and before[2] != after[2]
    return before[0] != after[0] or moved_numpy or not torch.equal(before[1], after[1])
