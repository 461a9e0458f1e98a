"""Self-attentive next item recommendation, trained with sampled negatives."""
import argparse
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_interactions(num_users, num_items, maxlen, seed):
    rng = np.random.default_rng(seed)
    taste = rng.integers(0, 20, size=num_users)
    seqs = np.zeros((num_users, maxlen + 1), dtype=np.int64)
    for u in range(num_users):
        cluster = rng.integers(1, num_items // 20, size=maxlen + 1) + taste[u] * (num_items // 20)
        explore = rng.integers(1, num_items + 1, size=maxlen + 1)
        seqs[u] = np.where(rng.random(maxlen + 1) < 0.8, cluster, explore)
        cut = rng.integers(0, maxlen // 3)
        seqs[u, :cut] = 0
    return torch.from_numpy(seqs)


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class SASRec(nn.Module):
    def __init__(self, num_items, maxlen, dim=80, depth=2, heads=4, dropout=0.1):
        super().__init__()
        self.item = nn.Embedding(num_items + 1, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(maxlen, dim) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(dim, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.item.weight, std=0.02)

    def forward(self, seq, pos, neg):
        x = self.drop(self.item(seq) + self.pos)
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(x)
        pos_score = (x * self.item(pos)).sum(-1, keepdim=True)
        neg_score = torch.einsum("btd,btkd->btk", x, self.item(neg))
        return torch.cat([pos_score, neg_score], -1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--users", type=int, default=3200)
    p.add_argument("--items", type=int, default=4000)
    p.add_argument("--maxlen", type=int, default=40)
    p.add_argument("--negatives", type=int, default=8)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    seqs = make_interactions(args.users, args.items, args.maxlen, seed=0)
    history = [set(row.tolist()) for row in seqs]

    loader = DataLoader(TensorDataset(torch.arange(args.users), seqs), batch_size=args.batch, shuffle=True)
    model = SASRec(args.items, args.maxlen)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), fused=True)

    step = 0
    for epoch in range(args.epochs):
        t0 = time.time()
        for users, rows in loader:
            seq, pos = rows[:, :-1], rows[:, 1:]
            neg = []
            for u, row in zip(users.tolist(), pos.tolist()):
                seen = history[u]
                per_user = []
                for item in row:
                    cand = []
                    while len(cand) < args.negatives:
                        j = random.randint(1, args.items)
                        if j not in seen:
                            cand.append(j)
                    per_user.append(cand)
                neg.append(per_user)
            neg = torch.tensor(neg)

            logits = model(seq, pos, neg)
            mask = pos != 0
            target = torch.zeros(int(mask.sum()), dtype=torch.long)
            loss = F.cross_entropy(logits[mask], target)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                hit = (logits[mask].argmax(-1) == 0).float().mean()
                print(f"step {step:4d}  loss {loss.item():.4f}  hit@1 {hit.item():.3f}", flush=True)
        print(f"epoch {epoch} took {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
