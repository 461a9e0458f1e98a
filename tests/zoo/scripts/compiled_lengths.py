"""Sequence model under torch.compile; the sequences grow as training goes on."""

import argparse

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(512, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 512)

    def forward(self, ids):
        h = self.embed(ids)
        h = h + self.down(F.gelu(self.up(self.norm(h)))) + h.cumsum(1) / ids.shape[1]
        return self.head(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 128

    grow_every = {1: 30, 2: 12, 3: 4}[args.level]
    model = Mixer()
    net = torch.compile(model, backend="aot_eager", dynamic=args.fixed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    corpus = torch.randint(0, 512, (100_000,))
    for step in range(args.steps):
        length = 64 + step // grow_every
        start = torch.randint(0, len(corpus) - length - 1, (16,))
        window = corpus[start[:, None] + torch.arange(length + 1)]
        optimizer.zero_grad()
        logits = net(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
