#!/usr/bin/env python3
"""timm-flavoured ViT training on in-memory uint8 images."""
import argparse
import os
import tempfile
import time
from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="ViT training")
parser.add_argument("--img-size", default=48, type=int)
parser.add_argument("--patch", default=6, type=int)
parser.add_argument("--dim", default=128, type=int)
parser.add_argument("--depth", default=4, type=int)
parser.add_argument("--num-classes", default=10, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int)
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("--lr", default=1e-3, type=float)
parser.add_argument("--ema-decay", default=0.99, type=float)
parser.add_argument("--seed", default=42, type=int)


class FastLoader:
    """Shuffles, flips and normalises whole batches of uint8 images."""

    def __init__(self, images, targets, batch_size, train):
        self.images, self.targets, self.batch_size, self.train = images, targets, batch_size, train
        self.mean = torch.tensor([0.5, 0.5, 0.5]).view(1, 3, 1, 1) * 255
        self.scale = 1 / (torch.tensor([0.25, 0.25, 0.25]).view(1, 3, 1, 1) * 255)

    def __len__(self):
        return len(self.images) // self.batch_size

    def __iter__(self):
        n = len(self) * self.batch_size
        order = torch.randperm(len(self.images))[:n] if self.train else torch.arange(n)
        for idx in order.split(self.batch_size):
            x = self.images[idx].float().sub_(self.mean).mul_(self.scale)
            if self.train:
                x = torch.where((torch.rand(len(idx), 1, 1, 1) < 0.5), x.flip(3), x)
            yield x, self.targets[idx]


class ViT(nn.Module):
    def __init__(self, a):
        super().__init__()
        tokens = (a.img_size // a.patch) ** 2
        self.patch = nn.Conv2d(3, a.dim, a.patch, a.patch)
        self.pos = nn.Parameter(torch.randn(tokens, a.dim) * 0.02)
        layer = nn.TransformerEncoderLayer(a.dim, 4, 4 * a.dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, a.depth, enable_nested_tensor=False)
        self.head = nn.Linear(a.dim, a.num_classes)

    def forward(self, x):
        return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2) + self.pos).mean(1))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum() for x, y in loader)
    model.train()
    return 100.0 * hits.item() / (len(loader) * loader.batch_size)


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    targets = torch.randint(0, args.num_classes, (1120,))
    base = torch.randint(0, 160, (args.num_classes, 3, args.img_size, args.img_size))
    images = (base[targets] + torch.randint(0, 96, (1120, 3, args.img_size, args.img_size))).to(torch.uint8)
    loader_train = FastLoader(images[:960], targets[:960], args.batch_size, True)
    loader_eval = FastLoader(images[960:], targets[960:], args.batch_size, False)
    model = ViT(args)
    ema = deepcopy(model).requires_grad_(False)
    ema_params, params = list(ema.parameters()), list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.05, fused=True)
    start = time.time()
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for x, y in loader_train:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
            optimizer.step()
            torch._foreach_lerp_(ema_params, params, 1 - args.ema_decay)
            total += loss.detach()
        print(f"Train: {epoch} Loss: {total.item() / len(loader_train):.3f} Time: {time.time() - start:.1f}s", flush=True)
    print(f"Test: Acc@1 {validate(ema, loader_eval):.1f}")
    with tempfile.TemporaryDirectory() as out:
        torch.save({"state_dict": model.state_dict(), "state_dict_ema": ema.state_dict()}, os.path.join(out, "last.pth.tar"))


if __name__ == "__main__":
    main()
