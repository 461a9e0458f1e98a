"""Text classifier whose batches are encoded from raw strings when they are put together."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
TABLE_SIZE = 4096
WIDTH = 64


class Reviews(Dataset):
    def __init__(self, count, words):
        rng = random.Random(1)
        lexicon = ["".join(rng.choices(ALPHABET, k=rng.randint(3, 9))) for _ in range(2000)]
        self.texts = [" ".join(rng.choices(lexicon, k=words)) for _ in range(count)]
        self.labels = [rng.randrange(2) for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], self.labels[i]


def encode(text):
    """Hashed character trigrams of every word."""
    ids = []
    for word in text.split():
        marked = f"<{word}>"
        for k in range(len(marked) - 2):
            h = 0
            for c in marked[k : k + 3]:
                h = (h * 31 + ord(c)) % TABLE_SIZE
            ids.append(h)
    return ids


def make_batch(rows):
    texts, labels = zip(*rows)
    encoded = [encode(t) for t in texts]
    out = torch.zeros(len(encoded), TABLE_SIZE)
    for r, ids in enumerate(encoded):
        out[r] = torch.bincount(torch.tensor(ids), minlength=TABLE_SIZE).float()
    return out, torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--prepared", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    words = {1: 45, 2: 90, 3: 240}[args.level]
    workers = args.workers if args.workers is not None else (2 if args.fixed else 0)
    data, collate = Reviews(1024, words), make_batch
    if args.prepared:
        features, labels = make_batch(list(data))
        data, collate, workers = TensorDataset(features, labels), None, 0
    loader = DataLoader(
        data,
        batch_size=64,
        shuffle=True,
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    model = nn.Sequential(nn.Linear(TABLE_SIZE, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    while step < args.steps:
        for features, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
