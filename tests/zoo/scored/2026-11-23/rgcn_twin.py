"""Relational GCN node classification with sampled edges and the Lion optimizer."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if p not in self.state:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            exp_avgs = [self.state[p]["exp_avg"] for p in params]
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            updates = torch._foreach_lerp(exp_avgs, grads, 1 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(exp_avgs, grads, 1 - beta2)


class RelationalConv(nn.Module):
    def __init__(self, dim, relations):
        super().__init__()
        self.weight = nn.ParameterList(nn.Parameter(torch.randn(dim, dim) / dim ** 0.5) for _ in range(relations))
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(dim)) for _ in range(relations))
        self.root = nn.Linear(dim, dim)

    def forward(self, x, edges):
        out = self.root(x)
        weight, bias = torch.stack(list(self.weight)), torch.stack(list(self.bias))
        messages = torch.baddbmm(bias.unsqueeze(1), x[edges[:, 0]], weight)
        return out.index_add(0, edges[:, 1].flatten(), messages.flatten(0, 1), alpha=1.0 / edges.shape[0])


class RGCN(nn.Module):
    def __init__(self, features, dim, relations, layers, classes):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.convs = nn.ModuleList(RelationalConv(dim, relations) for _ in range(layers))
        self.out = nn.Linear(dim, classes)

    def forward(self, x, edges):
        h = self.inp(x)
        for conv in self.convs:
            h = h + F.relu(conv(h, edges))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nodes", type=int, default=3000)
    ap.add_argument("--features", type=int, default=64)
    ap.add_argument("--relations", type=int, default=120)
    ap.add_argument("--edges-per-relation", type=int, default=128)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--classes", type=int, default=6)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)

    labels = torch.randint(0, a.classes, (a.nodes,))
    x = torch.randn(a.classes, a.features)[labels] + 2 * torch.randn(a.nodes, a.features)
    pool = torch.randint(0, a.nodes, (a.relations, 2, 4 * a.edges_per_relation))
    model = RGCN(a.features, a.dim, a.relations, a.layers, a.classes)
    optimizer = Lion(model.parameters(), lr=a.lr, weight_decay=0.01)

    start = time.time()
    running = torch.zeros(())
    for step in range(1, a.steps + 1):
        pick = torch.randint(0, pool.shape[2], (a.edges_per_relation,))
        loss = F.cross_entropy(model(x, pool[:, :, pick]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {running.item() / 50:.4f} ({time.time() - start:.1f}s)", flush=True)
            running.zero_()


if __name__ == "__main__":
    main()
