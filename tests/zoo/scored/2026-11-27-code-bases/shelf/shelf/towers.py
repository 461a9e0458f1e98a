import torch
import torch.nn as nn
import torch.nn.functional as F


class ItemTable(nn.Module):
    def __init__(self, items, dim, row_gradients):
        super().__init__()
        self.vectors = nn.Embedding(items, dim, sparse=row_gradients)
        nn.init.normal_(self.vectors.weight, std=0.05)

    def forward(self, ids):
        return self.vectors(ids)


def mlp(cin, hidden, cout):
    return nn.Sequential(
        nn.Linear(cin, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, cout),
    )


class TwoTower(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.table = ItemTable(s.items, s.dim, s.row_gradients)
        self.age = nn.Embedding(8, 8)
        self.region = nn.Embedding(40, 8)
        self.user = mlp(s.dim + 16, s.hidden, s.dim)
        self.item = mlp(s.dim, s.hidden, s.dim)

    def forward(self, history, age, region, positive, negative):
        past = self.table(history).mean(1)
        u = self.user(torch.cat([past, self.age(age), self.region(region)], 1))
        ids = torch.cat([positive[:, None], negative], 1)
        v = self.table(ids)
        v = v + self.item(v)
        scores = torch.einsum("bd,bkd->bk", u, v)
        return F.cross_entropy(scores, torch.zeros(len(u), dtype=torch.long))
