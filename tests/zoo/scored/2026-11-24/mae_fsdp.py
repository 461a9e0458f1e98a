"""Masked autoencoder pre-training on small images, sharded with FSDP2."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class MAE(nn.Module):
    def __init__(self, patches=64, patch_dim=48, dim=128, depth=3, dec_dim=96, heads=4, keep=0.5):
        super().__init__()
        self.keep = int(patches * keep)
        self.embed = nn.Linear(patch_dim, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, patches, dim))
        self.encoder = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.bridge = nn.Linear(dim, dec_dim)
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, dec_dim))
        self.dec_pos = nn.Parameter(0.02 * torch.randn(1, patches, dec_dim))
        self.decoder = nn.ModuleList([Layer(dec_dim, heads)])
        self.pred = nn.Linear(dec_dim, patch_dim)

    def forward(self, patches):
        b, n, _ = patches.shape
        order = torch.rand(b, n).argsort(1)
        keep = order[:, :self.keep]
        x = self.embed(patches) + self.pos
        x = x.gather(1, keep.unsqueeze(-1).expand(-1, -1, x.size(-1)))
        for layer in self.encoder:
            x = layer(x)
        x = self.bridge(x)
        full = torch.cat([x, self.mask_token.expand(b, n - self.keep, -1)], 1)
        restore = order.argsort(1).unsqueeze(-1).expand(-1, -1, full.size(-1))
        full = full.gather(1, restore) + self.dec_pos
        for layer in self.decoder:
            full = layer(full)
        err = (self.pred(full) - patches).pow(2).mean(-1)
        hidden = torch.ones(b, n).scatter(1, keep, 0.0)
        return (err * hidden).sum() / hidden.sum()


def build_images(n, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 3, 5, 5, generator=g)
    imgs = F.interpolate(coarse, size=(32, 32), mode="bicubic") + 0.05 * torch.randn(n, 3, 32, 32, generator=g)
    return F.unfold(imgs, 4, stride=4).transpose(1, 2).contiguous()


def main(args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(args.seed)
    model = MAE()
    for layer in [*model.encoder, *model.decoder]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(args.seed + rank)

    patches = build_images(4096, args.seed)[rank::world].contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    order, cursor = torch.randperm(len(patches)), 0
    acc, tic = torch.zeros(()), time.time()
    for step in range(1, args.steps + 1):
        if cursor + args.batch > len(patches):
            order, cursor = torch.randperm(len(patches)), 0
        batch = patches[order[cursor:cursor + args.batch]]
        cursor += args.batch
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()
        acc += loss.detach()
        if step % 30 == 0:
            if rank == 0:
                print(f"step {step} recon {acc.item() / 30:.4f} ({time.time() - tic:.1f}s)", flush=True)
            acc.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=120)
    cli.add_argument("--batch", type=int, default=24)
    cli.add_argument("--lr", type=float, default=6e-4)
    cli.add_argument("--seed", type=int, default=21)
    main(cli.parse_args())
