"""Set transformer for multi-instance assay regression: each sample is a bag of fragments."""
import argparse
import time

import numpy as np
import torch
import torch._dynamo
from torch import nn


class FragmentSets:
    """Bags of fragment descriptors of differing size, grouped into equal-size batches."""

    def __init__(self, n_bags, min_size, max_size, dim, seed):
        rng = np.random.default_rng(seed)
        self.sizes = np.sort(rng.integers(min_size, max_size + 1, n_bags))
        self.w = torch.from_numpy(rng.normal(size=(dim,)).astype(np.float32))
        self.bags = [torch.from_numpy(rng.normal(size=(s, dim)).astype(np.float32)) for s in self.sizes]
        self.y = torch.stack([(b @ self.w).relu().mean() for b in self.bags])
        self.rng = rng

    def batches(self, batch_size):
        blocks = []
        for size in np.unique(self.sizes):
            members = self.rng.permutation(np.flatnonzero(self.sizes == size))
            blocks += [members[i:i + batch_size] for i in range(0, len(members) - batch_size + 1, batch_size)]
        for k in self.rng.permutation(len(blocks)):
            ids = blocks[k].tolist()
            yield torch.stack([self.bags[i] for i in ids]), self.y[ids]


class MAB(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, y):
        k, v = self.kv(y).chunk(2, -1)
        a = nn.functional.scaled_dot_product_attention(self.split(self.q(x)), self.split(k), self.split(v))
        x = self.n1(x + self.o(a.transpose(1, 2).flatten(2)))
        return self.n2(x + self.ff(x))


class SetRegressor(nn.Module):
    def __init__(self, in_dim, dim, heads, depth):
        super().__init__()
        self.inp = nn.Linear(in_dim, dim)
        self.layers = nn.ModuleList(MAB(dim, heads) for _ in range(depth))
        self.seed = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.pool = MAB(dim, heads)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, h)
        pooled = self.pool(self.seed.expand(x.size(0), -1, -1), h)
        return self.out(pooled[:, 0]).squeeze(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bags", type=int, default=6000)
    parser.add_argument("--min-size", type=int, default=24)
    parser.add_argument("--max-size", type=int, default=31)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch._dynamo.config.recompile_limit = 64
    data = FragmentSets(args.bags, args.min_size, args.max_size, 32, args.seed)
    model = SetRegressor(32, args.dim, 4, args.depth)
    compiled = torch.compile(model, backend=args.backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.steps)

    step, running, t0 = 0, torch.zeros(()), time.time()
    while step < args.steps:
        for x, y in data.batches(args.batch_size):
            loss = nn.functional.mse_loss(compiled(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.detach()
            step += 1
            if step % 25 == 0:
                print(f"{step:4d}/{args.steps}  mse {running.item() / 25:.4f}  {time.time() - t0:.1f}s", flush=True)
                running.zero_()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
