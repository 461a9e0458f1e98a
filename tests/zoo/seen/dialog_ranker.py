"""Dual-encoder response ranking with in-batch negatives."""
import argparse
import gc
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def load_dialogs(n):
    """Dialogs as they come out of the JSON dump: nested dicts and lists."""
    rng = random.Random(12)
    dialogs = []
    for i in range(n):
        turns = [{"speaker": t % 2, "tokens": [rng.randrange(1, 2000) for _ in range(12)], "meta": {"t": t}}
                 for t in range(4)]
        dialogs.append({"id": i, "turns": turns, "tags": [str(i % 7)]})
    return dialogs


class Tower(nn.Module):
    def __init__(self, emb, d=64):
        super().__init__()
        self.emb = emb
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.proj = nn.Linear(d, d)

    def forward(self, ids):
        _, h = self.rnn(self.emb(ids))
        return F.normalize(self.proj(h[-1]), dim=-1)


class Ranker(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        emb = nn.Embedding(2000, d)
        self.ctx, self.rsp = Tower(emb, d), Tower(emb, d)

    def forward(self, a, b):
        sim = self.ctx(a) @ self.rsp(b).T / 0.07
        return F.cross_entropy(sim, torch.arange(len(a)))


def fetch(dialogs, rng, size):
    picked = [dialogs[rng.randrange(len(dialogs))] for _ in range(size)]
    ctx = [sum((t["tokens"] for t in d["turns"][:3]), []) for d in picked]
    rsp = [d["turns"][3]["tokens"] for d in picked]
    return torch.tensor(ctx), torch.tensor(rsp)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(12)
    rng = random.Random(0)
    tidy_every = {1: 30, 2: 14, 3: 4}[args.level]
    dialogs = load_dialogs(2500)
    model = Ranker()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        a, b = fetch(dialogs, rng, 96)
        loss = model(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not args.fixed and step % tidy_every == 0:
            del a, b
            gc.collect()  # the node is shared, give memory back
        if step % 50 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
