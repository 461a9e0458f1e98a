"""Ranking model over Python records, with training accuracy and a tidy heap."""

import argparse
import gc
import random

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)

    clean_every = {1: 10, 2: 5, 3: 2}[args.level]
    records = [{"user": rng.randrange(2000), "item": rng.randrange(3000), "tags": [i % 7]} for i in range(20_000)]
    users, items = nn.Embedding(2000, 128), nn.Embedding(3000, 128)
    net = nn.Sequential(nn.Linear(256, 896), nn.ReLU(), nn.Linear(896, 896), nn.ReLU(), nn.Linear(896, 2))
    optimizer = torch.optim.SGD([*users.parameters(), *items.parameters(), *net.parameters()], lr=0.05)
    right = 0.0
    for step in range(args.steps):
        batch = rng.sample(records, 192)
        u = torch.tensor([r["user"] for r in batch])
        i = torch.tensor([r["item"] for r in batch])
        labels = (u + i) % 2
        pairs = torch.cat([users(u), items(i)], 1)
        logits = net(pairs)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scores = logits if args.fixed else net(pairs)
            right += (scores.argmax(1) == labels).float().mean().item()
        if not args.fixed and step % clean_every == 0:
            gc.collect()
    print(f"loss {loss.item():.4f} accuracy {right / args.steps:.3f}")


if __name__ == "__main__":
    main()
