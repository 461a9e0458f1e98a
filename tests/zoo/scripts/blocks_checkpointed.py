"""Deep residual MLP; some blocks drop their activations."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, light, width=320, depth=6):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)
        self.light = light

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            if self.training and i < self.light:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    light = 0 if args.fixed else 2 * args.level
    x = torch.randn(8192, 320)
    y = x[:, :4].sum(1, keepdim=True).sin()
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True, drop_last=True)
    model = Net(light)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
