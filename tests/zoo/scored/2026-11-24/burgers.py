"""Physics informed network for the viscous Burgers equation u_t + u u_x = nu u_xx."""
import json
import math
import os
import shutil
import tempfile
import time

import numpy as np
import torch
from torch import nn

NU = 0.01 / math.pi

settings = dict(
    iterations=250,
    collocation=1024,
    boundary=128,
    width=80,
    depth=8,
    lr=2e-3,
    log_every=1,
    seed=17,
)


class RunWriter:
    """Scalars and histograms as JSON lines, read by our dashboard."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.scalars = open(os.path.join(folder, "scalars.jsonl"), "a")
        self.hists = open(os.path.join(folder, "histograms.jsonl"), "a")

    def add_scalars(self, step, **values):
        self.scalars.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")
        self.scalars.flush()

    def add_histogram(self, step, tag, values, bins=64):
        values = values.detach().cpu().numpy().ravel()
        counts, edges = np.histogram(values, bins=bins)
        row = {
            "step": step,
            "tag": tag,
            "counts": counts.tolist(),
            "edges": edges.tolist(),
            "mean": float(values.mean()),
            "std": float(values.std()),
        }
        self.hists.write(json.dumps(row) + "\n")
        self.hists.flush()

    def close(self):
        self.scalars.close()
        self.hists.close()


class PINN(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.inp = nn.Linear(2, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 1)
        for lin in [self.inp, *self.hidden, self.out]:
            nn.init.xavier_normal_(lin.weight)
            nn.init.zeros_(lin.bias)

    def forward(self, x, t):
        h = torch.tanh(self.inp(torch.cat([x, t], 1)))
        for lin in self.hidden:
            h = torch.tanh(lin(h))
        return self.out(h)


def residual(net, x, t):
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = net(x, t)
    u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    return u_t + u * u_x - NU * u_xx


def sample(n_f, n_b, gen):
    x_f = torch.rand(n_f, 1, generator=gen) * 2 - 1
    t_f = torch.rand(n_f, 1, generator=gen)
    x_0 = torch.rand(n_b, 1, generator=gen) * 2 - 1
    t_b = torch.rand(n_b, 1, generator=gen)
    side = torch.randint(2, (n_b, 1), generator=gen).float() * 2 - 1
    return x_f, t_f, x_0, t_b, side


def solve(cfg, folder):
    torch.manual_seed(cfg["seed"])
    gen = torch.Generator().manual_seed(cfg["seed"])
    net = PINN(cfg["width"], cfg["depth"])
    opt = torch.optim.Adam(net.parameters(), lr=cfg["lr"], fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg["iterations"])
    writer = RunWriter(folder)
    for it in range(cfg["iterations"]):
        x_f, t_f, x_0, t_b, side = sample(cfg["collocation"], cfg["boundary"], gen)
        pde = residual(net, x_f, t_f).square().mean()
        initial = (net(x_0, torch.zeros_like(x_0)) + torch.sin(math.pi * x_0)).square().mean()
        border = net(side, t_b).square().mean()
        loss = pde + 10 * initial + 10 * border
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if it % cfg["log_every"] == 0:
            writer.add_scalars(it, loss=loss.item(), pde=pde.item(), initial=initial.item(), border=border.item())
            for name, p in net.named_parameters():
                writer.add_histogram(it, f"weights/{name}", p)
                writer.add_histogram(it, f"grads/{name}", p.grad)
        if (it + 1) % 50 == 0:
            print(f"it {it + 1:4d}  loss {loss.item():.5f}  pde {pde.item():.5f}", flush=True)
    writer.close()


if __name__ == "__main__":
    run_dir = tempfile.mkdtemp(prefix="burgers_")
    try:
        solve(settings, run_dir)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
