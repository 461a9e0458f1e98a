"""Local-attention language model; the attention window widens during training."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

# the run is long enough that the default limit on cached variants was hit once
torch._dynamo.config.recompile_limit = 256
torch._dynamo.config.accumulated_recompile_limit = 512


class LocalBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class LocalLM(nn.Module):
    def __init__(self, vocab, d, depth, length, as_buffer):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(LocalBlock(d, 4) for _ in range(depth))
        self.head = nn.Linear(d, vocab)
        pos = torch.arange(length)
        self.register_buffer("gap", pos[:, None] - pos[None, :])
        if as_buffer:
            self.register_buffer("window", torch.tensor(4))
        else:
            self.window = 4

    def widen(self, w):
        if isinstance(self.window, torch.Tensor):
            self.window.fill_(w)
        else:
            self.window = w

    def forward(self, ids):
        mask = (self.gap >= 0) & (self.gap < self.window)
        x = self.emb(ids)
        for blk in self.blocks:
            x = blk(x, mask)
        return self.head(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(9)

    length, vocab = 64, 512
    every = {1: 60, 2: 28, 3: 9}[args.level]   # steps between two window sizes
    model = LocalLM(vocab, 64, 2, length, as_buffer=args.fixed)
    # no C++ toolchain on the training nodes: graph capture only, keeps the model exportable
    fast = torch.compile(model, backend="eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    corpus = torch.randint(0, vocab, (100_000,))

    for step in range(args.steps):
        model.widen(4 + step // every)
        at = torch.randint(0, len(corpus) - length - 1, (28, 1)) + torch.arange(length + 1)
        chunk = corpus[at]
        logits = fast(chunk[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, vocab), chunk[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"{step} | {loss.item():.3f} | window {int(model.window)}")


if __name__ == "__main__":
    main()
