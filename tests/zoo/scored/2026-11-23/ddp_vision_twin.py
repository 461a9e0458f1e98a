"""Two-process image classification with DistributedDataParallel."""
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Settings:
    image: int = 32
    classes: int = 10
    per_rank: int = 1536
    batch: int = 32
    steps: int = 180
    hidden: int = 1536
    lr: float = 0.02
    momentum: float = 0.9
    seed: int = 31


class PatchNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 4, 4), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        flat = 64 * (s.image // 8) ** 2
        self.classifier = nn.Sequential(
            nn.Linear(flat, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.classes))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Worker:
    def __init__(self, s):
        self.s = s
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = int(os.environ["RANK"])
        torch.manual_seed(s.seed)
        net = PatchNet(s)
        protos = torch.randn(s.classes, 3, s.image, s.image)
        torch.manual_seed(s.seed + 1 + self.rank)
        self.y = torch.randint(0, s.classes, (s.per_rank,))
        self.x = protos[self.y] + 3 * torch.randn(s.per_rank, 3, s.image, s.image)
        self.model = DistributedDataParallel(net, gradient_as_bucket_view=True)
        self.opt = torch.optim.SGD(net.parameters(), lr=s.lr, momentum=s.momentum, fused=True)

    def train(self):
        t0 = time.time()
        running = torch.zeros(())
        for step in range(1, self.s.steps + 1):
            idx = torch.randint(0, self.s.per_rank, (self.s.batch,))
            loss = F.cross_entropy(self.model(self.x[idx]), self.y[idx])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            running += loss.detach()
            if step % 90 == 0 and self.rank == 0:
                print(f"step {step} loss {running.item() / 90:.4f} {time.time() - t0:.1f}s", flush=True)
                running.zero_()
        dist.destroy_process_group()


if __name__ == "__main__":
    Worker(Settings()).train()
