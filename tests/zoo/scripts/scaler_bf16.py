"""Click model with a wide top network, mixed precision."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Clicks(nn.Module):
    def __init__(self, wide, rows=2000, fields=8, width=32):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.top = nn.Sequential(
            nn.Linear(fields * width, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1)
        )

    def forward(self, ids):
        return self.top(torch.cat([t(ids[:, i]) for i, t in enumerate(self.tables)], 1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    wide, batch = {1: (1024, 128), 2: (2048, 32), 3: (2560, 8)}[args.level]
    ids = torch.randint(0, 2000, (32768, 8))
    clicked = (ids.sum(1) % 2).float()
    loader = DataLoader(
        TensorDataset(ids, clicked),
        sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(ids), batch, drop_last=True),
        batch_size=None,
    )
    model = Clicks(wide)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=not args.fixed)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.binary_cross_entropy_with_logits(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
