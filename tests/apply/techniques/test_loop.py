"""foreach-clipping: equal results."""

import pytest
import torch

from hotloop.agent.attach.applying import _change_calls

from .small import is_equal, make_net, outside, train


@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_clipping_over_lists_gives_equal_bits(name: str) -> None:
    original = getattr(torch.nn.utils, name)
    applier = outside("foreach-clipping")
    changed = _change_calls(applier, f"torch.nn.utils.clip_grad:{name}")(original)
    results = []
    for clip in (original, changed):
        model = make_net()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
        clip(model.parameters(), 1e-3, foreach=False)
        results.append([p.grad for p in model.parameters()])
    assert is_equal(*results)
    assert [record.status for record in applier.records] == ["applied"]
