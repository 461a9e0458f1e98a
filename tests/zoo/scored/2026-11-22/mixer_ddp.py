"""MLP-Mixer classification with DistributedDataParallel over gloo."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class PatternImages(Dataset):
    def __init__(self, n, size, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, classes, (n,), generator=g)
        protos = F.interpolate(torch.randn(classes, 3, 8, 8, generator=g), size=size,
                               mode="bilinear", align_corners=False)
        self.x = protos[self.y] + 0.8 * torch.randn(n, 3, size, size, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, tokens * 2), nn.GELU(),
                                       nn.Linear(tokens * 2, tokens))
        self.channel_mlp = nn.Sequential(nn.Linear(dim, dim * 3), nn.GELU(),
                                         nn.Linear(dim * 3, dim))

    def forward(self, x):
        x = x + self.token_mlp(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mlp(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, size, patch, dim, depth, classes):
        super().__init__()
        tokens = (size // patch) ** 2
        self.patchify = nn.Conv2d(3, dim, patch, stride=patch)
        self.layers = nn.Sequential(*[MixerLayer(tokens, dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        return self.fc(self.norm(self.layers(x)).mean(dim=1))


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--train-size", type=int, default=2400)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--patch", type=int, default=8)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--depth", type=int, default=24)
    p.add_argument("--classes", type=int, default=20)
    p.add_argument("--batch-size", type=int, default=8, help="per rank")
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--bucket-mb", type=float, default=0.005)
    p.add_argument("--seed", type=int, default=8)
    return p.parse_args()


def main():
    args = parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    dataset = PatternImages(args.train_size, args.size, args.classes, args.seed)
    sampler = DistributedSampler(dataset, seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    net = Mixer(args.size, args.patch, args.dim, args.depth, args.classes)
    model = DistributedDataParallel(net, bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(2)
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            loss_sum += torch.stack([loss.detach(), (out.argmax(1) == y).float().mean()])
        dist.all_reduce(loss_sum)
        loss_sum /= len(loader) * dist.get_world_size()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss_sum[0]:.4f} acc {loss_sum[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
