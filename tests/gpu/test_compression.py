"""Gradients in fewer bits on a device: hooks over NCCL on one rank, tensors there and back; gloo on a CPU too."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hotloop.change.apply.compression import METHODS, make_hook, register

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MOST_ERROR = {"bf16": 2**-8, "fp16": 2**-11, "int8": 2**-6}
"""Of one exchange, relative to the gradient. topk keeps most of it at first."""


@pytest.fixture
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A process group of this process alone, on the device that the test names."""
    device: str = request.param
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield device
    dist.destroy_process_group()


def gradients_of(device: str, method: str | None) -> tuple[torch.Tensor, Any]:
    torch.manual_seed(0)
    layers = [nn.Linear(256, 256) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=0.3)
    hook = None if method is None else make_hook(method)
    if hook is not None:
        register(model, hook)
    draws = torch.Generator().manual_seed(1)
    for _ in range(3):  # buckets are laid out anew after the first
        model.zero_grad()
        model(
            torch.randn(32, 256, generator=draws).to(device)
        ).square().sum().backward()  # float16 would lose the gradients of a mean
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None]), hook


@pytest.mark.parametrize("alone", DEVICES, indirect=True)
@pytest.mark.parametrize("method", METHODS)
def test_a_hook_gives_the_gradient_up_to_what_it_keeps(alone: str, method: str) -> None:
    plain, _ = gradients_of(alone, None)
    sent, hook = gradients_of(alone, method)
    assert sent.device.type == alone
    error = float((sent - plain).norm() / plain.norm())
    assert error > 0
    assert error < MOST_ERROR.get(method, 2.0)
    assert sent.count_nonzero() >= 0.009 * sent.numel()
    state = hook.state_dict()
    hook.load_state_dict(state)
    again = hook.state_dict()
    for part in ("unsent", "right"):
        for name, kept in state.get(part, {}).items():
            assert torch.equal(again[part][name], kept)
