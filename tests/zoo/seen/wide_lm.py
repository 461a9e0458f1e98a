"""GPT-style language model on synthetic bytes, single file."""
import argparse
import contextlib
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 256
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 256


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.proj = nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.h = c.n_head

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.h, C // self.h).transpose(1, 2) for t in self.qkv(x).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.attn = SelfAttention(c)
        self.fc = nn.Linear(c.n_embd, 4 * c.n_embd)
        self.out = nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.out(F.relu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c.vocab_size, c.n_embd)
        self.pos = nn.Embedding(c.block_size, c.n_embd)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        for b in self.blocks:
            x = b(x)
        logits = self.lm_head(self.ln(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


parser = argparse.ArgumentParser()
parser.add_argument("--level", type=int, default=2)
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()

torch.manual_seed(1337)
n_embd, batch_size = {1: (192, 10), 2: (256, 8), 3: (640, 3)}[args.level]
conf = GPTConfig(n_embd=n_embd)
data = torch.randint(0, conf.vocab_size, (200_000,))
ctx = torch.autocast("cpu", dtype=torch.bfloat16) if args.fixed else contextlib.nullcontext()


def get_batch():
    ix = torch.randint(len(data) - conf.block_size - 1, (batch_size,))
    x = torch.stack([data[i:i + conf.block_size] for i in ix])
    y = torch.stack([data[i + 1:i + 1 + conf.block_size] for i in ix])
    return x, y


model = GPT(conf)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for it in range(args.steps):
    X, Y = get_batch()
    with ctx:
        loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if it % 50 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")
