"""Multi-task insurance claims model: shared column encoders, one tower per target."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TARGETS = ("frequency", "severity", "lapse", "fraud")


class ColumnEncoder(nn.Module):
    """Embeds one categorical column and refines it with a gated residual layer."""

    def __init__(self, cardinality, dim):
        super().__init__()
        self.table = nn.Embedding(cardinality, dim)
        self.gate = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, idx):
        e = self.table(idx)
        return self.norm(e + torch.sigmoid(self.gate(e)) * self.value(e))


class Tower(nn.Module):
    def __init__(self, dim, hidden, depth):
        super().__init__()
        dims = [dim] + [hidden] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.silu(layer(x))
        return self.out(x).squeeze(-1)


class SharedEncoder(nn.Module):
    def __init__(self, cards, n_numeric, dim):
        super().__init__()
        self.numeric = nn.Sequential(nn.Linear(n_numeric, 64), nn.SiLU(), nn.Linear(64, dim))
        self.columns = nn.ModuleList(ColumnEncoder(c, dim) for c in cards)

    def forward(self, cats, nums):
        parts = [enc(cats[:, i]) for i, enc in enumerate(self.columns)]
        parts.append(self.numeric(nums))
        return torch.cat(parts, dim=1)


def wrap(module):
    return DistributedDataParallel(module)


class ClaimsModel:
    """The encoder and the towers are checkpointed and deployed apart, so each is a replica set of its own."""

    def __init__(self, cards, n_numeric, dim=16, hidden=96, depth=3):
        self.encoder = wrap(SharedEncoder(cards, n_numeric, dim))
        width = dim * (len(cards) + 1)
        self.towers = {t: wrap(Tower(width, hidden, depth)) for t in TARGETS}

    def parameters(self):
        for module in (self.encoder, *self.towers.values()):
            yield from module.parameters()

    def __call__(self, cats, nums):
        h = self.encoder(cats, nums)
        return {name: tower(h) for name, tower in self.towers.items()}


def synth_claims(rows, cards, n_numeric, seed):
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(c, (rows,), generator=g) for c in cards], 1)
    nums = torch.randn(rows, n_numeric, generator=g)
    signal = nums[:, :3].sum(1) + (cats[:, 0] % 5 - 2).float() * 0.5
    targets = {
        "frequency": torch.poisson(torch.exp(0.3 * signal).clamp(max=20), generator=g),
        "severity": signal + torch.randn(rows, generator=g),
        "lapse": (signal + torch.randn(rows, generator=g) > 1).float(),
        "fraud": (nums[:, 3] + torch.randn(rows, generator=g) > 2).float(),
    }
    return cats, nums, targets


def joint_loss(out, tgt):
    bce = nn.functional.binary_cross_entropy_with_logits
    loss = nn.functional.poisson_nll_loss(out["frequency"], tgt["frequency"])
    loss = loss + nn.functional.mse_loss(out["severity"], tgt["severity"])
    return loss + bce(out["lapse"], tgt["lapse"]) + bce(out["fraud"], tgt["fraud"])


def run(args):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rank, world = dist.get_rank(), dist.get_world_size()

    cards = [20 + 13 * (i % 17) for i in range(args.columns)]
    cats, nums, targets = synth_claims(args.rows, cards, 12, args.seed)
    model = ClaimsModel(cards, 12)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4, fused=True)

    g = torch.Generator().manual_seed(args.seed)
    perm, cursor = torch.randperm(args.rows, generator=g), 0
    tic, running = time.time(), torch.zeros(())
    for step in range(1, args.steps + 1):
        if cursor + args.batch * world > args.rows:
            perm, cursor = torch.randperm(args.rows, generator=g), 0
        idx = perm[cursor + rank * args.batch: cursor + (rank + 1) * args.batch]
        cursor += args.batch * world
        out = model(cats[idx], nums[idx])
        loss = joint_loss(out, {k: v[idx] for k, v in targets.items()})
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        running += loss.detach()
        if step % args.print_freq == 0:
            if rank == 0:
                print(f"step {step:5d} joint {running.item() / args.print_freq:.4f} {step / (time.time() - tic):.1f} it/s", flush=True)
            running.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=60000)
    ap.add_argument("--columns", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--print-freq", type=int, default=50)
    ap.add_argument("--seed", type=int, default=5)
    run(ap.parse_args())
