"""CompressedDDP on one rank, and what it refuses; on two ranks test_hooks.py trains with it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hotloop import CompressedDDP, HotloopError
from hotloop.change.apply.compression import hooks_of


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_one_rank_trains_as_ddp_does_and_says_so() -> None:
    model = CompressedDDP(nn.Linear(4, 2), method="topk", ratio=0.1)
    x = torch.randn(3, 4)
    model(x).sum().backward()
    assert torch.equal(model.module.weight.grad, x.sum(0).expand(2, 4))
    assert hooks_of(model) == []
    assert model.compression_state() == {}
    model.load_compression_state({})


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CompressedDDP(nn.Linear(2, 2), method="int1"), "method is 'int1': choose one of bf16, fp16, int8"),
        (lambda: CompressedDDP(nn.Linear(2, 2), method="topk", ratio=2.0), "ratio is 2.0: choose"),
        (lambda: CompressedDDP(nn.Linear(2, 2), ratio=0.1), 'ratio needs method = "topk": bf16 does not use it'),
        (lambda: CompressedDDP(nn.Linear(2, 2).bfloat16()), "gradients are torch.bfloat16: only float32"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(make: Any, message: str) -> None:
    with pytest.raises(HotloopError, match=message):
        make()
