"""Whether reading a batch moved a random generator that others use."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.random  # imported lazily otherwise, by the first draw
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.agent.observe.draws import drew, random_states


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda: torch.ones(2), 0),
        (lambda: torch.rand(2), 1),
        (lambda: random.random(), 1),
        (lambda: np.random.rand(), 1),
        (lambda: np.random.default_rng(0).random(), 0),
        (lambda: random.Random(0).random(), 0),
        (lambda: torch.rand(2, generator=torch.Generator()), 0),
    ],
)
def test_only_global_generators_count(read: Callable[[], Any], expected: int) -> None:
    before = random_states()
    read()
    assert drew(before) == expected


def test_looking_draws_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    assert drew(random_states()) == 0
    assert torch.equal(torch.rand(3), expected)


def test_where_a_mode_would_notice_it_is_not_known() -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(function)

    with Mode():
        assert random_states() is None
    assert drew(None) == -1
