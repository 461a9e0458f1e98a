"""Encoder-decoder transformer for a transliteration-like task (fixed-length strings)."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BOS = 1


def build_corpus(n, length, alphabet, seed):
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(2, alphabet, (n, length), generator=g)
    table = torch.randperm(alphabet - 2, generator=g) + 2
    mapped = table[src - 2]
    swapped = mapped.clone()
    swapped[:, 0::2], swapped[:, 1::2] = mapped[:, 1::2], mapped[:, 0::2]
    return src, swapped


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, memory, causal=False):
        b, t, d = x.shape
        split = lambda z: z.view(b, -1, self.heads, d // self.heads).transpose(1, 2)
        k, v = self.kv(memory).chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(k), split(v), is_causal=causal)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, cross):
        super().__init__()
        self.causal = cross
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.cross = Attention(dim, heads) if cross else None
        self.n3 = nn.LayerNorm(dim) if cross else None
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x, memory=None):
        h = self.n1(x)
        x = x + self.attn(h, h, self.causal)
        if self.cross is not None:
            x = x + self.cross(self.n3(x), memory)
        return x + self.ff(self.n2(x))


class Translit(nn.Module):
    def __init__(self, alphabet, length, dim, depth, heads):
        super().__init__()
        self.src, self.tgt = nn.Embedding(alphabet, dim), nn.Embedding(alphabet, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.encoder = nn.ModuleList(Block(dim, heads, False) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(dim, heads, True) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, alphabet)

    def forward(self, src, tgt):
        m = self.src(src) + self.pos
        for block in self.encoder:
            m = block(m)
        x = self.tgt(tgt) + self.pos
        for block in self.decoder:
            x = block(x, m)
        return self.head(self.norm(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=180)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--length", type=int, default=40)
    p.add_argument("--alphabet", type=int, default=64)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--seed", type=int, default=15)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    src, tgt = build_corpus(20000, args.length, args.alphabet, args.seed)
    tgt_in = torch.cat([torch.full((len(tgt), 1), BOS), tgt[:, :-1]], dim=1)
    model = Translit(args.alphabet, args.length, args.dim, args.depth, heads=4)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min((s + 1) / 40, (40 / (s + 1)) ** 0.5))
    start = time.time()
    for step in range(args.steps):
        rows = torch.randint(0, len(src), (args.batch,))
        logits = model(src[rows], tgt_in[rows])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[rows].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0:
            acc = (logits.argmax(-1) == tgt[rows]).float().mean().item()
            print(f"{step} loss {loss.item():.3f} token acc {acc:.3f} {time.time() - start:.1f}s",
                  flush=True)


if __name__ == "__main__":
    main()
