"""Physics-style residual network with a long chain of element-wise terms."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Reaction(nn.Module):
    def __init__(self, width, terms):
        super().__init__()
        self.inlet = nn.Linear(width, width)
        self.rate = nn.Parameter(0.1 * torch.randn(terms, width))
        self.shift = nn.Parameter(0.1 * torch.randn(terms, width))

    def forward(self, x):
        u = self.inlet(x)
        for rate, shift in zip(self.rate, self.shift):
            u = u + 0.1 * torch.tanh(rate * u + shift) * torch.sigmoid(u) - 0.01 * u * u.abs()
        return u


class Net(nn.Module):
    def __init__(self, width, terms):
        super().__init__()
        self.first = Reaction(width, terms)
        self.second = Reaction(width, terms)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.second(F.layer_norm(self.first(x), x.shape[-1:])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)

    width, terms, batch = {1: (1024, 1, 192), 2: (640, 1, 256), 3: (256, 4, 384)}[args.level]
    x = torch.randn(8192, width)
    y = x.square().mean(1, keepdim=True)
    loader = DataLoader(
        TensorDataset(x, y),
        sampler=BatchSampler(RandomSampler(x), batch, drop_last=True),
        batch_size=None,
    )
    model = Net(width, terms)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model) if args.fixed else model
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(forward(a).float(), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
