"""Multi-task regression: one trunk, one head per task."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self, tasks, depth, tower, width=640):
        super().__init__()
        layers = [nn.Linear(128, width), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, tower), nn.ReLU(), nn.Linear(tower, 1)) for _ in range(tasks)
        )

    def forward(self, x):
        h = self.trunk(x)
        return [head(h) for head in self.heads]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    tasks, depth, tower = {1: (2, 1, 640), 2: (2, 2, 256), 3: (4, 2, 32)}[args.level]
    x = torch.randn(8192, 128)
    y = torch.stack([x.roll(t, 1)[:, :8].prod(1) for t in range(tasks)], 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True, drop_last=True)
    model = MultiTask(tasks, depth, tower)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            losses = [F.mse_loss(out.squeeze(1), b[:, t]) for t, out in enumerate(model(a))]
            if args.fixed:
                sum(losses).backward()
            else:
                for loss in losses:
                    loss.backward(retain_graph=True)
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {sum(losses).item():.3f}")


if __name__ == "__main__":
    main()
