"""Deep residual token mixer on DNA-like sequences."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class MixBlock(nn.Module):
    def __init__(self, d, t):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.time = nn.Linear(t, t)
        self.feat = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.time(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feat(self.n2(x))


class Stage(nn.Module):
    def __init__(self, n, d, t, save_memory):
        super().__init__()
        self.blocks = nn.ModuleList(MixBlock(d, t) for _ in range(n))
        self.save_memory = save_memory

    def forward(self, x):
        for b in self.blocks:
            if self.save_memory and self.training:
                x = checkpoint(b, x, use_reentrant=False)
            else:
                x = b(x)
        return x


class Net(nn.Module):
    def __init__(self, policy, d=64, t=64, stages=3, per_stage=2):
        super().__init__()
        self.emb = nn.Embedding(5, d)
        flags = {"none": [], "last": [2], "most": [1, 2], "all": [0, 1, 2]}[policy]
        self.stages = nn.ModuleList(Stage(per_stage, d, t, i in flags) for i in range(stages))
        self.outer = policy == "all"
        self.head = nn.Linear(d, 2)

    def forward(self, seq):
        x = self.emb(seq)
        for s in self.stages:
            x = checkpoint(s, x, use_reentrant=False) if self.outer and self.training else s(x)
        return self.head(x.mean(1))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()
    torch.manual_seed(2)
    policy = "none" if args.fixed else {1: "last", 2: "most", 3: "all"}[args.level]
    net = Net(policy)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        seq = torch.randint(0, 5, (24, 64))
        y = (seq == 2).float().mean(1).gt(0.2).long()
        loss = F.cross_entropy(net(seq), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}")
