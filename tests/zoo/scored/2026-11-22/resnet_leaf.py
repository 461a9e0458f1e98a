"""ResNet-ish classifier of synthetic leaf outlines, one validation pass per epoch."""
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class TrainConfig:
    samples: int = 2200
    size: int = 32
    classes: int = 8
    width: int = 24
    batch_size: int = 32
    epochs: int = 3
    lr: float = 0.08
    seed: int = 100


def leaves(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    label = torch.randint(0, cfg.classes, (cfg.samples,), generator=g)
    axis = torch.linspace(-1, 1, cfg.size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    radius, angle = (xx ** 2 + yy ** 2).sqrt(), torch.atan2(yy, xx)
    lobes = (label + 2).view(-1, 1, 1)
    rot = torch.rand(cfg.samples, 1, 1, generator=g) * 6.28
    edge = 0.6 + 0.25 * torch.cos(lobes * angle + rot)
    img = torch.sigmoid((edge - radius) * 12).unsqueeze(1)
    img = img + 0.5 * torch.randn(img.shape, generator=g)
    return TensorDataset((img - img.mean()) / img.std(), label)


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(o)
        self.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(o)
        self.short = nn.Identity() if stride == 1 and i == o else nn.Conv2d(i, o, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.short(x))


class LeafNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 1, 1)
        self.body = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, 2 * width, 2),
                                  BasicBlock(2 * width, 4 * width, 2))
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


class LeafTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        g = torch.Generator().manual_seed(cfg.seed)
        train, val = random_split(leaves(cfg), [cfg.samples - 200, 200], generator=g)
        self.train_loader = DataLoader(train, cfg.batch_size, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(val, 100)
        self.model = LeafNet(cfg.width, cfg.classes)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9,
                                   nesterov=True, weight_decay=5e-4, fused=True)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(
            self.opt, cfg.lr, total_steps=cfg.epochs * len(self.train_loader))

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for x, y in self.train_loader:
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            total += loss.item()
        return total / len(self.train_loader)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader)
        return hits / len(self.val_loader.dataset)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            t0 = time.time()
            loss = self.train_epoch()
            print(f"epoch {epoch} loss {loss:.4f} val acc {self.validate():.3f} "
                  f"{time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    config = TrainConfig()
    torch.manual_seed(config.seed)
    LeafTrainer(config).fit()
