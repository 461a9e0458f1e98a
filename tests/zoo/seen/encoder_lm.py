"""Next-token model on nn.TransformerEncoder with a causal mask."""
import argparse
import math

import torch
from torch import nn

VOCAB, SEQ, D = 300, 64, 64


class EncoderLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.pos = nn.Parameter(torch.zeros(SEQ, D))
        layer = nn.TransformerEncoderLayer(D, 4, 3 * D, dropout=0.1, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(D, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQ))

    def forward(self, x):
        h = self.emb(x) * math.sqrt(D) + self.pos
        return self.head(self.enc(h, mask=self.mask, is_causal=True))


def get_batch(data, bs):
    ix = torch.randint(len(data) - SEQ - 1, (bs,))
    x = torch.stack([data[i:i + SEQ] for i in ix])
    y = torch.stack([data[i + 1:i + SEQ + 1] for i in ix])
    return x, y


def train(steps):
    torch.manual_seed(80)
    data = torch.randint(0, VOCAB, (100_000,))
    model = EncoderLM().train()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for i in range(steps):
        x, y = get_batch(data, 20)
        loss = nn.functional.cross_entropy(model(x).view(-1, VOCAB), y.view(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if i % 50 == 0:
            print(f"step {i} loss {loss.item():.3f} lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    train(p.parse_args().steps)
