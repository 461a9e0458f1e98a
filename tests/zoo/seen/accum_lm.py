"""nanoGPT-like loop with gradient accumulation; micro-batches are as large as memory
for the activations is meant to allow, the update sees four of them."""
import argparse

import torch
import torch.nn as nn
from torch.nn import functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
steps = ap.parse_args().steps

torch.manual_seed(1)
vocab, block, d, micro_batch, accum = 128, 64, 64, 16, 4
data = torch.randint(0, vocab, (120_000,))


def get_batch():
    ix = torch.randint(len(data) - block - 1, (micro_batch, 1)) + torch.arange(block + 1)
    c = data[ix]
    return c[:, :-1], c[:, 1:]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(block, d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, x, y):
        h = self.tok(x) + self.pos.weight
        B, T, C = h.shape
        q, k, v = (t.view(B, T, 4, C // 4).transpose(1, 2) for t in self.qkv(self.ln(h)).split(C, -1))
        h = h + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))
        h = h + self.mlp(h)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for it in range(steps):
    for _ in range(accum):
        X, Y = get_batch()
        loss = model(X, Y) / accum
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 50 == 0:
        print(f"iter {it} loss {loss.item() * accum:.4f}")
