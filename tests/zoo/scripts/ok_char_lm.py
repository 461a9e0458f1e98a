"""Character language model that cuts its batches from one long tensor."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

TEXT = (
    "the quick brown fox jumps over the lazy dog while seven wizards make toxic brew for the evil queen and jack. "
) * 800


class Lm(nn.Module):
    def __init__(self, vocab, width=96, length=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids):
        n = ids.shape[1]
        h = self.embed(ids) + self.place[:n]
        return self.head(self.blocks(h, mask=self.mask[:n, :n], is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(c) for c in TEXT])
    split = int(0.9 * len(data))
    train, held = data[:split], data[split:]

    def get_batch(source):
        start = torch.randint(0, len(source) - 65, (12,))
        window = source[start[:, None] + torch.arange(65)]
        return window[:, :-1], window[:, 1:]

    model = Lm(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                x, y = get_batch(held)
                print(f"step {step} held-out {F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item():.3f}")
            model.train()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        x, y = get_batch(train)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
