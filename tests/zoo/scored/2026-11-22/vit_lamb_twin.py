"""Small ViT on synthetic shapes, trained with a home-made AdamW variant."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

cfg = dict(size=32, patch=8, dim=256, depth=6, heads=4, classes=10, batch=16,
           steps=170, lr=3e-4, weight_decay=0.05, seed=9)


def shapes(n, size, classes, g):
    y = torch.randint(0, classes, (n,), generator=g)
    proto = torch.randn(classes, 3, size, size, generator=g)
    proto = F.avg_pool2d(proto, 5, 1, 2) * 3
    x = proto[y] + 1.2 * torch.randn(n, 3, size, size, generator=g)
    return x, y


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


class ViT(nn.Module):
    def __init__(self, size, patch, dim, depth, heads, classes):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, stride=patch)
        n = (size // patch) ** 2
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.layers(x))[:, 0])


def lr_at(step, total, base, warmup=20):
    if step < warmup:
        return base * (step + 1) / warmup
    return base * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    g = torch.Generator().manual_seed(cfg["seed"])
    torch.manual_seed(cfg["seed"])
    x, y = shapes(4096, cfg["size"], cfg["classes"], g)
    net = ViT(cfg["size"], cfg["patch"], cfg["dim"], cfg["depth"], cfg["heads"], cfg["classes"])
    opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], weight_decay=cfg["weight_decay"],
                            fused=True)
    t0 = time.time()
    for step in range(cfg["steps"]):
        for group in opt.param_groups:
            group["lr"] = lr_at(step, cfg["steps"], cfg["lr"])
        rows = torch.randint(0, len(x), (cfg["batch"],), generator=g)
        logits = net(x[rows])
        loss = F.cross_entropy(logits, y[rows], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == cfg["steps"] - 1:
            acc = (logits.argmax(-1) == y[rows]).float().mean()
            print(f"{step:4d} loss {loss.item():.3f} acc {acc:.2f} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
