"""Two-tower retrieval with in-batch negatives and sparse embedding updates."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--users", type=int, default=20000)
parser.add_argument("--items", type=int, default=10000)
parser.add_argument("--dim", type=int, default=64)
parser.add_argument("--batch", type=int, default=1024)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--seed", type=int, default=14)


class Tower(nn.Module):
    def __init__(self, count, dim, features):
        super().__init__()
        self.table = nn.Embedding(count, dim, sparse=True)
        nn.init.normal_(self.table.weight, std=0.05)
        self.mlp = nn.Sequential(nn.Linear(dim + features, 896), nn.ReLU(), nn.Linear(896, 896), nn.ReLU(), nn.Linear(896, dim))

    def forward(self, ids, feats):
        return F.normalize(self.mlp(torch.cat([self.table(ids), feats], 1)), dim=1)


def main():
    a = parser.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)
    user_feats, item_feats = torch.randn(a.users, 16), torch.randn(a.items, 16)
    clicks_u = torch.randint(0, a.users, (300000,))
    clicks_i = (clicks_u * 13 + torch.randint(0, 20, clicks_u.shape)) % a.items
    users, items = Tower(a.users, a.dim, 16), Tower(a.items, a.dim, 16)
    dense = list(users.mlp.parameters()) + list(items.mlp.parameters())
    opt = torch.optim.AdamW(dense, lr=a.lr, fused=True)
    opt_tables = torch.optim.SGD([users.table.weight, items.table.weight], lr=1.0)
    target = torch.arange(a.batch)
    start, running = time.time(), torch.zeros(())
    for step in range(1, a.steps + 1):
        pick = torch.randint(0, len(clicks_u), (a.batch,))
        u, i = clicks_u[pick], clicks_i[pick]
        scores = users(u, user_feats[u]) @ items(i, item_feats[i]).t() / 0.07
        loss = F.cross_entropy(scores, target)
        opt.zero_grad()
        opt_tables.zero_grad()
        loss.backward()
        opt.step()
        opt_tables.step()
        running += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {running.item() / 50:.4f} {time.time() - start:.1f}s", flush=True)
            running.zero_()


if __name__ == "__main__":
    main()
