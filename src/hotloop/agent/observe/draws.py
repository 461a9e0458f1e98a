"""The global random generators before and after a call -> whether it drew from one of them."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from .inputs import memory_of

_state_of_python = random.getstate


def random_states() -> tuple[Any, ...] | None:
    """The states of Python's, torch's and, where something has imported it, numpy's generator; None where somebody
    would notice that they are read."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return None
    mtrand = sys.modules.get("numpy.random.mtrand")
    numpy_state: tuple[Any, ...] = ()
    generator = None if mtrand is None else getattr(mtrand, "_rand", None)
    kind: Any = getattr(mtrand, "RandomState", None)
    if generator is not None and type(generator) is kind:
        _, keys, *rest = kind.get_state(generator)
        numpy_state = (keys.tobytes(), *rest)
    state = torch.default_generator.get_state()
    return _state_of_python(), memory_of(state), numpy_state


def drew(before: tuple[Any, ...] | None) -> int:
    """1 where a generator moved since ``before``, 0 where none did, -1 where that is not known.

    >>> state = random_states()
    >>> drew(state), random.random() < 2, drew(state), drew(None)
    (0, True, 1, -1)
    """
    after = None if before is None else random_states()
    if before is None or after is None:
        return -1
    return int(before[0] != after[0] or before[1] != after[1] or bool(before[2] and before[2] != after[2]))
