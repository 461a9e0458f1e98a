"""Small float32 MLP on a table held in memory."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(20000, 40)
    y = (x[:, 0] * x[:, 1] > 0).long()
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 512, drop_last=True))
    model = nn.Sequential(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
