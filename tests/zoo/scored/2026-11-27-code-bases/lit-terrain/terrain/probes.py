"""Watches the activations of a network for dead units and exploding scales."""
import torch
from torch import nn

WATCHED = (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.ReLU)


class ActivationProbe:
    def __init__(self, net, every):
        self.every = every
        self.calls = {}
        self.summary = {}
        self.handles = [m.register_forward_hook(self._make(name))
                        for name, m in net.named_modules() if isinstance(m, WATCHED)]

    def _make(self, name):
        def record(module, inputs, output):
            n = self.calls[name] = self.calls.get(name, -1) + 1
            if n % self.every == 0:
                self.summary[name] = self.describe(output.detach())
        return record

    def describe(self, act):
        flat = act.transpose(0, 1).flatten(1)
        return {
            "mean": flat.mean(),
            "std": flat.std(),
            "peak": flat.abs().amax(),
            "dead": (flat.amax(dim=1) <= 0).float().mean(),
            "near_zero": (flat.abs() < 1e-4).float().mean(),
        }

    def alarms(self, limit=1e3):
        return [k for k, s in self.summary.items() if s["peak"] > limit or s["dead"] > 0.5]

    def close(self):
        for h in self.handles:
            h.remove()
