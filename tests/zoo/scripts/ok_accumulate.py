"""Four micro-batches per optimizer step, clipped by the library."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(32768, 200)
    y = x[:, :20].norm(dim=1, keepdim=True)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 192, drop_last=True))
    model = nn.Sequential(nn.Linear(200, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step, micro = 0, 0
    while step < args.steps:
        for a, b in loader:
            loss = F.mse_loss(model(a), b) / 4
            loss.backward()
            micro += 1
            if micro % 4 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step >= args.steps:
                    break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
