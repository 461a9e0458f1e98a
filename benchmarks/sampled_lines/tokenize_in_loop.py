"""A small text classifier that tokenises each batch in the loop."""

import random

import torch
from torch import nn

WORDS = ["gradient", "tensor", "batch", "loader", "optimizer", "weights", "of", "the", "a", "model"]


def pieces(word):
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end]
            if hash(piece) % 7 == 0 or end - start == 1:
                found.append(piece)
                start = end
                break
    return found


def encode(text, vocabulary):
    return [vocabulary.setdefault(piece, len(vocabulary) % 2000) for word in text.split() for piece in pieces(word)]


def pad(rows, width):
    batch = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = torch.tensor(row[:width])
    return batch


def main():
    torch.manual_seed(0)
    random.seed(0)
    texts = [" ".join(random.choices(WORDS, k=40)) for _ in range(512)]
    vocabulary = {}
    model = nn.Sequential(nn.Embedding(2000, 64), nn.Flatten(), nn.Linear(64 * 160, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(150):
        batch = [texts[(step * 32 + k) % 512] for k in range(32)]
        x = pad([encode(text, vocabulary) for text in batch], 160)
        y = torch.arange(32) % 4
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


main()
