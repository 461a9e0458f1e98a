"""Very deep residual network; gradients are clipped and weights decayed in the loop."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.mix(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    depth, batch, width = {1: (120, 64, 96), 2: (160, 48, 64), 3: (260, 8, 48)}[args.level]
    max_norm, decay, lr = 1.0, 0.01, 1e-3
    x = torch.randn(8192, width)
    y = x[:, :2].prod(1, keepdim=True)
    loader = DataLoader(
        TensorDataset(x, y),
        batch_size=None,
        sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(x), batch, drop_last=True),
    )
    model = nn.Sequential(*[Cell(width) for _ in range(depth)], nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay if args.fixed else 0.0, fused=True)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(a), b)
            loss.backward()
            if args.fixed:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=args.level == 3, foreach=True)
            else:
                total = 0.0
                for p in model.parameters():
                    if args.level == 3 and not torch.isfinite(p.grad).all():
                        raise RuntimeError("a gradient is not finite")
                    total += (p.grad**2).sum().item()
                scale = min(1.0, max_norm / (total**0.5 + 1e-6))
                for p in model.parameters():
                    p.grad = p.grad * scale
                with torch.no_grad():
                    for p in model.parameters():
                        p -= lr * decay * p
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
