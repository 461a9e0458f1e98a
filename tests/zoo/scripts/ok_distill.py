"""A student learns from a frozen teacher and from the labels."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def mlp(width):
    return nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(16384, 128)
    y = x[:, :10].argmax(1)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 256, drop_last=True))
    teacher, student = mlp(1024).eval().requires_grad_(False), mlp(512)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for a, b in loader:
            with torch.no_grad():
                soft = teacher(a).softmax(1)
            logits = student(a)
            loss = F.cross_entropy(logits, b) + F.kl_div(logits.log_softmax(1), soft, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
