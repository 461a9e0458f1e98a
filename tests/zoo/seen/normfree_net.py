"""Normaliser-free network: gradients of every output unit are limited relative to
the size of that unit's weights before the update."""
import argparse

import torch
from torch import nn


def limit_units(params, ratio=0.02, eps=1e-3):
    for p in params:
        if p.grad is None:
            continue
        if p.ndim == 1:
            g, w = p.grad.norm(), max(p.detach().norm().item(), eps)
            if g.item() > ratio * w:
                p.grad.mul_(ratio * w / g.item())
            continue
        for row in range(p.shape[0]):
            w = max(p.data[row].norm().item(), eps)
            g = p.grad[row].norm().item()
            if g > ratio * w:
                p.grad[row].mul_(ratio * w / g)


@torch.no_grad()
def limit_units_batched(params, ratio=0.02, eps=1e-3):
    for p in params:
        if p.grad is None:
            continue
        dim = None if p.ndim == 1 else tuple(range(1, p.ndim))
        w = torch.linalg.vector_norm(p, dim=dim, keepdim=True).clamp_(min=eps)
        g = torch.linalg.vector_norm(p.grad, dim=dim, keepdim=True)
        p.grad.mul_((ratio * w / g.clamp(min=1e-12)).clamp_(max=1.0))


class ScaledBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.gain = nn.Parameter(torch.zeros(()).view(1))

    def forward(self, x):
        return x + self.gain * self.b(nn.functional.silu(self.a(x)) * 1.7)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(19)
    d, depth, batch = {1: (48, 2, 10240), 2: (64, 3, 6144), 3: (64, 6, 1536)}[args.level]
    net = nn.Sequential(nn.Linear(40, d), *[ScaledBlock(d) for _ in range(depth)], nn.Linear(d, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    limiter = limit_units_batched if args.fixed else limit_units
    params = list(net.parameters())
    x = torch.randn(30000, 40)
    y = x[:, :10].argmax(1)
    for it in range(args.steps):
        s = torch.randint(0, len(x) - batch, (1,)).item()
        loss = nn.functional.cross_entropy(net(x[s:s + batch]), y[s:s + batch])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        limiter(params)
        opt.step()
        if it % 50 == 0:
            print("iter", it, "loss", loss.item())


if __name__ == "__main__":
    main()
