"""Stack of different transformer blocks, compiled one by one."""
import argparse
import os
import tempfile

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor_"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2)) / (d // self.heads) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        att = att.masked_fill(mask, float("-inf")).softmax(-1)
        return self.o((att @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, mult, act):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = Attention(dim, heads)
        self.up, self.gate = nn.Linear(dim, mult * dim), nn.Linear(dim, mult * dim)
        self.down = nn.Linear(mult * dim, dim)
        self.act = act

    def forward(self, x):
        x = x + self.att(self.n1(x))
        h = self.n2(x)
        h = self.act(self.gate(h)) * self.up(h)
        return x + self.down(h / (1 + h.pow(2).mean(-1, keepdim=True)).sqrt())


class LM(nn.Module):
    def __init__(self, vocab, dim, depth):
        super().__init__()
        acts = [F.gelu, F.silu, F.relu, torch.tanh, F.softplus, F.elu]
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            Block(dim, (1, 2, 4)[i % 3], 2 + i % 3, acts[i % len(acts)]) for i in range(depth))
        self.head = nn.Linear(dim, vocab)

    def compile_blocks(self):
        for blk in self.blocks:
            blk.forward = torch.compile(blk.forward, dynamic=False)

    def forward(self, t):
        h = self.emb(t)
        for blk in self.blocks:
            h = blk(h)
        return self.head(h)


def train(model, opt, args):
    for step in range(args.steps):
        if step == args.eager_steps:
            torch._dynamo.config.recompile_limit = 64
            model.compile_blocks()
            print("READY", flush=True)
        t = torch.randint(0, 256, (4, 33))
        logits = model(t[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), t[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--depth", type=int, default=28)
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--eager-steps", type=int, default=40)
    args = ap.parse_args()
    torch.set_num_threads(1)
    net = LM(256, args.dim, args.depth)
    train(net, torch.optim.AdamW(net.parameters(), 3e-4), args)
