"""Small transformer encoder on random token classification."""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 20)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)

    width, layers, batch, length = {1: (160, 2, 8, 64), 2: (192, 2, 8, 64), 3: (448, 1, 10, 64)}[args.level]
    ids = torch.randint(0, 1000, (2048, length))
    tags = ids % 20
    loader = DataLoader(TensorDataset(ids, tags), batch_size=batch, shuffle=True)
    model = Tagger(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    precision = torch.autocast("cpu", dtype=torch.bfloat16) if args.fixed else contextlib.nullcontext()
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            with precision:
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
