"""A compiled network with fixed shapes."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.value(x)) * torch.sigmoid(self.gate(x)) - 0.01 * x * x.abs()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(16384, 256)
    data = TensorDataset(x, x.tanh().mean(1, keepdim=True))
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 512, drop_last=True))
    model = nn.Sequential(Gated(256), Gated(256), Gated(256), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(forward(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
