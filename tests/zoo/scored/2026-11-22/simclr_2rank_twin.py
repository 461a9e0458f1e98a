"""SimCLR-style pretraining, gradients averaged by hand between two workers."""
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH = 16
STEPS = 130
SIZE = 32
WIDTH = 24
TEMPERATURE = 0.2
SEED = 77


def setup():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def make_images(n, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 6, 6, generator=g)
    return F.interpolate(coarse, size=SIZE + 8, mode="bicubic", align_corners=False)


def two_views(images, g):
    def view():
        dy, dx = torch.randint(0, 8, (2,), generator=g).tolist()
        v = images[:, :, dy:dy + SIZE, dx:dx + SIZE]
        if torch.rand(1, generator=g) < 0.5:
            v = v.flip(-1)
        gain = torch.rand(len(v), 3, 1, 1, generator=g) * 0.6 + 0.7
        return v * gain + 0.05 * torch.randn(v.shape, generator=g)
    return view(), view()


class Residual(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.GroupNorm(8, o), nn.GroupNorm(8, o)
        self.skip = nn.Conv2d(i, o, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.skip(x))


class SimCLR(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, w, 3, 2, 1), Residual(w, 2 * w, 2),
                                      Residual(2 * w, 4 * w, 2), Residual(4 * w, 8 * w, 2),
                                      nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projector = nn.Sequential(nn.Linear(8 * w, 2048), nn.ReLU(), nn.Linear(2048, 2048),
                                       nn.ReLU(), nn.Linear(2048, 128))

    def forward(self, a, b):
        z = self.projector(self.backbone(torch.cat([a, b])))
        return F.normalize(z, dim=1)


def nt_xent(z, temperature):
    n = len(z) // 2
    sim = z @ z.T / temperature
    sim.fill_diagonal_(float("-inf"))
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


def cosine(step):
    return 0.5 * (1 + math.cos(math.pi * step / STEPS))


def main():
    rank, world = setup()
    torch.manual_seed(SEED + rank)
    images = make_images(2048, SEED)[rank::world]
    g = torch.Generator().manual_seed(SEED + 1000 * rank)
    model = DDP(SimCLR(WIDTH))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, cosine)
    t0, running = time.time(), None
    for step in range(STEPS):
        rows = torch.randint(0, len(images), (BATCH,), generator=g)
        a, b = two_views(images[rows], g)
        loss = nt_xent(model(a, b), TEMPERATURE)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} nt-xent {running:.4f} {time.time() - t0:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
