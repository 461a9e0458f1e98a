"""Classifier over a small indexed data set that is passed many times."""

import argparse
import json
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    """Each loader process parses the index once, on first use."""

    def __init__(self, count):
        rng = random.Random(1)
        self.text = json.dumps([{"id": i, "row": [rng.random() for _ in range(128)]} for i in range(count)])
        self.count = count
        self.index = None

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.index is None:
            self.index = json.loads(self.text)
        return torch.tensor(self.index[i]["row"]), i % 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    batches_per_epoch = {1: 60, 2: 24, 3: 6}[args.level]
    data = Indexed(batches_per_epoch * 32)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, persistent_workers=args.fixed)
    model = nn.Sequential(nn.Linear(128, 1400), nn.ReLU(), nn.Linear(1400, 1400), nn.ReLU(), nn.Linear(1400, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
