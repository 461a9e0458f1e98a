"""Small ResNet on synthetic texture classes, two data-parallel processes."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def conv3(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, 3, stride, 1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = conv3(cin, cout, stride), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = conv3(cout, cout), nn.BatchNorm2d(cout)
        self.short = nn.Identity()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.short(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, classes, widths=(24, 48, 96)):
        super().__init__()
        self.stem = nn.Sequential(conv3(3, widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        blocks, cin = [], widths[0]
        for i, w in enumerate(widths):
            blocks.append(BasicBlock(cin, w, 1 if i == 0 else 2))
            cin = w
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def textures(n, classes, size, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    grid = torch.linspace(0, 1, size)
    freq = (1 + y).float().view(-1, 1, 1)
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    wave = torch.sin(6.28 * freq * (grid.view(1, -1, 1) + 0.5 * grid.view(1, 1, -1)) + phase)
    x = wave.unsqueeze(1) + torch.randn(n, 3, size, size, generator=g)
    return x, y


def augment(x, g):
    flip = torch.rand(len(x), generator=g) < 0.5
    return torch.where(flip.view(-1, 1, 1, 1), x.flip(3), x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", default=150, type=int)
    ap.add_argument("--batch-size", default=24, type=int, help="per process")
    ap.add_argument("--lr", default=0.1, type=float)
    ap.add_argument("--momentum", default=0.9, type=float)
    ap.add_argument("--wd", default=5e-4, type=float)
    ap.add_argument("--seed", default=4, type=int)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x, y = textures(4096, 10, 32, args.seed)
    net = ResNet(10).to(memory_format=torch.channels_last)
    net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    opt = torch.optim.SGD(net.parameters(), args.lr, args.momentum, weight_decay=args.wd, nesterov=True, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)

    shuffle = torch.Generator().manual_seed(args.seed)
    aug = torch.Generator().manual_seed(args.seed + 100 + rank)
    span = args.batch_size * world
    order, pos = torch.randperm(len(x), generator=shuffle), 0
    loss_sum, hits, tic = torch.zeros(()), torch.zeros(()), time.time()
    for step in range(1, args.steps + 1):
        if pos + span > len(x):
            order, pos = torch.randperm(len(x), generator=shuffle), 0
        mine = order[pos:pos + span][rank::world]
        pos += span
        images = augment(x[mine], aug).contiguous(memory_format=torch.channels_last)
        logits = net(images)
        loss = F.cross_entropy(logits, y[mine], label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        loss_sum += loss.detach()
        hits += (logits.detach().argmax(1) == y[mine]).sum()
        if step % 30 == 0:
            if rank == 0:
                print(f"{step:4d} loss {loss_sum.item() / 30:.3f} acc {hits.item() / 30 / args.batch_size:.3f} [{time.time() - tic:.1f}s]", flush=True)
            loss_sum.zero_(), hits.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
