"""Regression that writes a checkpoint every 100 steps."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=220)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(16384, 192)
    y = x.sin().mean(1, keepdim=True)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 384, drop_last=True))
    model = nn.Sequential(nn.Linear(192, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        step = 0
        while step < args.steps:
            for a, b in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(a), b)
                loss.backward()
                optimizer.step()
                step += 1
                if step % 100 == 0:
                    torch.save({"model": model.state_dict(), "step": step}, Path(folder, f"{step}.pt"))
                if step >= args.steps:
                    break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
