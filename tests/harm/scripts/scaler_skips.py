# ruff: noqa
"""GradScaler on the CPU skips steps with infinite gradients, with growth, two optimizers and a disabled scaler. Compared: scale,
steps done, bits of the weights."""

import torch
from _result import net, result, sgd

model, head = net(16, 1, 16), torch.nn.Linear(16, 1)
first, second = sgd(model), torch.optim.Adam(head.parameters(), lr=1e-3)
scaler, off = (
    torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5),
    torch.amp.GradScaler("cpu", enabled=False),
)
done = []
for step in range(40):
    loss = head(model(torch.randn(8, 16))).square().mean() * (float("inf") if step in (3, 17) else 1)
    first.zero_grad()
    second.zero_grad()
    if step % 5 == 4:
        off.scale(loss).backward()
        off.step(first)
        off.update()
        continue
    scaler.scale(loss).backward()
    scaler.unscale_(first)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    done.append(scaler.step(first) is None)
    scaler.step(second, closure=None) if False else scaler.step(second)
    scaler.update()
steps = [int(s["step"]) for s in second.state.values()]
result(loss, head, scale=float(scaler.get_scale()), steps=steps, body=float(model[0].weight.sum()))
