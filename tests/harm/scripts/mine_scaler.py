# ruff: noqa
"""A GradScaler subclass with traps on attributes and text that skips a step, and an optimizer that only it may step.
Compared: landmine calls, scale."""

import torch
from _mines import mine, mines, note
from _result import net, result, sgd


class Scaler(torch.amp.GradScaler):
    def __getattribute__(self, name):
        note(f"scaler:{name}")
        return super().__getattribute__(name)

    def __eq__(self, other):
        note("scaler.__eq__")
        return self is other

    def __bool__(self):
        note("scaler.__bool__")
        return False

    def __repr__(self):
        note("scaler.__repr__")
        return "scaler"

    __hash__ = None


model = net()
opt, scaler = sgd(model), Scaler("cpu", init_scale=1024.0, growth_interval=10)
for step in range(30):
    loss = model(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    scaler.scale(loss * (float("inf") if step == 7 else 1)).backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
result(loss if loss.isfinite() else 0, model, scale=float(scaler.get_scale()), **mines())
