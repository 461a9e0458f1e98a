"""Click prediction on wide tabular data: one small tower per column, then an MLP."""
import time
from argparse import ArgumentParser

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ColumnTower(nn.Module):
    def __init__(self, cardinality, dim):
        super().__init__()
        self.embed = nn.Embedding(cardinality, dim)
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, idx):
        h = self.embed(idx)
        return self.norm(h + self.fc2(torch.relu(self.fc1(h))))


class WideModel(nn.Module):
    def __init__(self, cardinalities, dim, hidden):
        super().__init__()
        self.towers = nn.ModuleList(ColumnTower(c, dim) for c in cardinalities)
        width = dim * len(cardinalities)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        h = torch.cat([tower(x[:, i]) for i, tower in enumerate(self.towers)], dim=1)
        return self.mlp(h).squeeze(1)


def make_table(rows, cardinalities, seed):
    g = torch.Generator().manual_seed(seed)
    cols, score = [], torch.zeros(rows)
    for c in cardinalities:
        col = (torch.rand(rows, generator=g) ** 2 * c).long()
        effect = torch.randn(c, generator=g) * 0.35
        score += effect[col]
        cols.append(col)
    y = (torch.rand(rows, generator=g) < torch.sigmoid(score)).float()
    return TensorDataset(torch.stack(cols, 1), y)


def get_args():
    p = ArgumentParser()
    p.add_argument("--columns", type=int, default=64)
    p.add_argument("--rows", type=int, default=81920)
    p.add_argument("--batch-size", type=int, default=512)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--max-update", type=int, default=240)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--log-interval", type=int, default=40)
    return p.parse_args()


def main():
    args = get_args()
    torch.manual_seed(1)
    cards = [8 + 37 * (i % 11) for i in range(args.columns)]
    loader = DataLoader(make_table(args.rows, cards, 1), batch_size=None,
                        sampler=torch.utils.data.BatchSampler(
                            torch.utils.data.RandomSampler(range(args.rows)), args.batch_size, drop_last=True))
    model = WideModel(cards, args.dim, args.hidden)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.lr, betas=(0.9, 0.98), weight_decay=1e-4, fused=True)
    print(f"| model: {len(params)} tensors, {sum(p.numel() for p in params)} weights")

    update, tic = 0, time.time()
    while update < args.max_update:
        for x, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update += 1
            if update % args.log_interval == 0:
                ups = args.log_interval / (time.time() - tic)
                tic = time.time()
                print(f"| update {update:4d} | loss {loss.item():.4f} | ups {ups:.1f}", flush=True)
            if update == args.max_update:
                break


if __name__ == "__main__":
    main()
