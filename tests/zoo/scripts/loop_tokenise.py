"""Bag-of-words classifier on raw lines of text."""

import argparse
import random
import re

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORD = re.compile(r"[a-z]+")
VOCAB = 8000
LENGTH = 128


class Lines(Dataset):
    def __init__(self, count, words):
        rng = random.Random(1)
        lexicon = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(6000)]
        self.lines = [" ".join(rng.choices(lexicon, k=words)).capitalize() + "." for _ in range(count)]
        self.labels = [rng.randrange(4) for _ in range(count)]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return self.lines[i], self.labels[i]


def to_ids(lines):
    rows = []
    for line in lines:
        ids = []
        for word in WORD.findall(line.lower()):
            h = 7
            for c in word:
                h = (h * 33 + ord(c)) % (VOCAB - 1)
            ids.append(h + 1)
        ids = ids[:LENGTH]
        rows.append(ids + [0] * (LENGTH - len(ids)))
    return torch.tensor(rows)


def encode_rows(rows):
    lines, labels = zip(*rows)
    return to_ids(lines), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(VOCAB, 256, padding_idx=0)
        self.net = nn.Sequential(nn.Linear(256, 1536), nn.GELU(), nn.Linear(1536, 1024), nn.GELU(), nn.Linear(1024, 4))

    def forward(self, ids):
        return self.net(self.embed(ids))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    words = {1: 120, 2: 240, 3: 1000}[args.level]
    data = Lines(2048, words)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    if args.fixed:
        loader = DataLoader(
            data, batch_size=48, shuffle=True, collate_fn=encode_rows, num_workers=2, persistent_workers=True
        )
    else:
        loader = DataLoader(data, batch_size=48, shuffle=True)
    step = 0
    while step < args.steps:
        for text, labels in loader:
            ids = text if args.fixed else to_ids(text)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
