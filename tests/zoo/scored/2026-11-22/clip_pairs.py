"""Dual encoder (image patch tower, text tower) with a symmetric contrastive loss."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def paired_data(n, size, words, length, seed):
    """Every caption names the concepts that are painted into the image."""
    g = torch.Generator().manual_seed(seed)
    caption = torch.randint(0, words, (n, length), generator=g)
    dictionary = torch.randn(words, 3, size, size, generator=g)
    dictionary = F.avg_pool2d(dictionary, 5, 1, 2)
    image = dictionary[caption[:, 0]]
    for k in range(1, length):
        image = image + dictionary[caption[:, k]]
    return image + 0.2 * torch.randn(image.shape, generator=g), caption


class Tower(nn.Module):
    def __init__(self, dim, depth, heads, out, tokens):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(tokens, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, out, bias=False)

    def forward(self, tokens):
        return F.normalize(self.proj(self.body(tokens + self.pos).mean(dim=1)), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self, size, words, length, dim=128, out=64, patch=8):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.words = nn.Embedding(words, dim)
        self.vision = Tower(dim, 3, 4, out, (size // patch) ** 2)
        self.text = Tower(dim, 2, 4, out, length)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, image, caption):
        i = self.vision(self.patches(image).flatten(2).transpose(1, 2))
        t = self.text(self.words(caption))
        return self.logit_scale.exp().clamp(max=100) * i @ t.T


def batches(image, caption, batch, generator):
    while True:
        for rows in torch.randperm(len(image), generator=generator).split(batch):
            if len(rows) == batch:
                yield image[rows], caption[rows]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pairs", type=int, default=4096)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--steps", type=int, default=280)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=29)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    size, words, length = 32, 40, 4
    image, caption = paired_data(args.pairs, size, words, length, args.seed)
    model = DualEncoder(size, words, length)
    decay = [q for q in model.parameters() if q.ndim > 1]
    rest = [q for q in model.parameters() if q.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                             {"params": rest, "weight_decay": 0.0}], lr=args.lr, fused=True)
    source = batches(image, caption, args.batch, torch.Generator().manual_seed(args.seed))
    target = torch.arange(args.batch)
    t0 = time.time()
    for step in range(args.steps):
        x, c = next(source)
        for group in opt.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / 20)
        logits = model(x, c)
        loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0:
            hit = (logits.argmax(1) == target).float().mean().item()
            print(f"step {step} loss {loss.item():.3f} r@1 {hit:.2f} {time.time() - t0:.1f}s",
                  flush=True)


if __name__ == "__main__":
    main()
