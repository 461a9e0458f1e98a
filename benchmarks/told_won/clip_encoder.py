"""An encoder whose helper scales every gradient into a new tensor; --mended: clip_grad_norm_ with foreach."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def limit(model, most):
    total = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
    if total > most:
        for p in model.parameters():
            p.grad = p.grad * (most / total)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(500, 64)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.tags = nn.Linear(64, 12)

    def forward(self, x):
        return self.tags(self.encoder(self.embed(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    mended = parser.parse_args().mended
    torch.manual_seed(6)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    words = torch.randint(0, 500, (400, 12))
    for _ in range(250):
        x = words[torch.randint(0, 400, (4,))]
        loss = F.cross_entropy(model(x).flatten(0, 1), (x % 12).flatten())
        optimizer.zero_grad()
        loss.backward()
        if mended:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
        else:
            limit(model, 0.1)
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
