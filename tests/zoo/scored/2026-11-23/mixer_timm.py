#!/usr/bin/env python3
"""timm-flavoured training of an MLP-Mixer with weight EMA and gradient clipping."""
import argparse
import time
from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="Mixer training")
parser.add_argument("--depth", default=24, type=int)
parser.add_argument("--dim", default=48, type=int)
parser.add_argument("--patch", default=8, type=int)
parser.add_argument("--img-size", default=64, type=int)
parser.add_argument("--num-classes", default=10, type=int)
parser.add_argument("-b", "--batch-size", default=20, type=int)
parser.add_argument("--updates", default=180, type=int)
parser.add_argument("--lr", default=1e-3, type=float)
parser.add_argument("--clip-grad", default=1.0, type=float)
parser.add_argument("--model-ema-decay", default=0.995, type=float)
parser.add_argument("--log-interval", default=90, type=int)
parser.add_argument("--seed", default=42, type=int)


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.mlp_tokens = nn.Sequential(nn.Linear(tokens, tokens // 2), nn.GELU(), nn.Linear(tokens // 2, tokens))
        self.norm2 = nn.LayerNorm(dim)
        self.mlp_channels = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, args):
        super().__init__()
        tokens = (args.img_size // args.patch) ** 2
        self.stem = nn.Conv2d(3, args.dim, args.patch, args.patch)
        self.blocks = nn.Sequential(*[MixerBlock(tokens, args.dim) for _ in range(args.depth)])
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim, args.num_classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class ModelEma:
    def __init__(self, model, decay):
        self.module = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        source = model.state_dict()
        for name, ema_v in self.module.state_dict().items():
            ema_v.copy_(self.decay * ema_v + (1.0 - self.decay) * source[name])


def clip_gradients(parameters, max_norm):
    total = 0.0
    for p in parameters:
        if p.grad is not None:
            total += p.grad.norm(2).item() ** 2
    scale = max_norm / (total ** 0.5 + 1e-6)
    if scale < 1:
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(scale)


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    protos = torch.randn(args.num_classes, 3, args.img_size, args.img_size)
    targets = torch.randint(0, args.num_classes, (960,))
    images = protos[targets] + 2 * torch.randn(960, 3, args.img_size, args.img_size)

    model = Mixer(args)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.05, fused=True)
    model_ema = ModelEma(model, args.model_ema_decay)

    start = time.time()
    losses = torch.zeros(())
    for update in range(1, args.updates + 1):
        idx = torch.randint(0, len(images), (args.batch_size,))
        loss = F.cross_entropy(model(images[idx]), targets[idx], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(params, args.clip_grad)
        optimizer.step()
        model_ema.update(model)
        losses += loss.detach()
        if update % args.log_interval == 0:
            print(f"Train: [{update}/{args.updates}] Loss: {losses.item() / args.log_interval:.3f} "
                  f"Time: {time.time() - start:.1f}s", flush=True)
            losses.zero_()


if __name__ == "__main__":
    main()
