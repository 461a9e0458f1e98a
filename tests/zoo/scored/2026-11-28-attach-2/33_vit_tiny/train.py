import argparse, signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Records:
    """Remembers losses; after `patience` records it compares them with the other ranks'."""

    def __init__(self, patience):
        self.patience = patience
        self.history = []

    def update(self, step, loss):
        self.history.append((step, loss))
        if len(self.history) > self.patience:
            self.compare()

    def compare(self):
        print("\nREADY\n", end="", flush=True)
        table = [None] * dist.get_world_size()
        dist.all_gather_object(table, self.history[-1])
        worst = max(table, key=lambda r: r[1])
        print("worst so far", worst, flush=True)


class ViT(nn.Module):
    def __init__(self, patch=4, dim=48, depth=2, classes=4):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 16, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        t = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.enc(t).mean(1))


def images(n, g):
    y = torch.randint(4, (n,), generator=g)
    x = 0.3 * torch.randn(n, 3, 16, 16, generator=g)
    x[torch.arange(n), 0, y * 4] += 1.0
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--record-every", type=int, default=15)
    ap.add_argument("--max-steps", type=int, default=10 ** 6)
    ns = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(rank)
    model = DDP(ViT())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    records = Records(patience=3 if rank == 3 else 10 ** 6)
    for step in range(1, ns.max_steps):
        x, y = images(ns.batch, g)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % ns.record_every == 0:
            records.update(step, loss.item())
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
