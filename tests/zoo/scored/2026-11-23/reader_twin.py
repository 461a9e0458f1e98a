"""Train a small ResNet on a folder of binary PPM images."""
import argparse
import os
import random
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor((0.49, 0.48, 0.45)).view(3, 1, 1)
STD = torch.tensor((0.25, 0.24, 0.26)).view(3, 1, 1)


def write_folder(root, count, classes, size, seed):
    g = torch.Generator().manual_seed(seed)
    rows = torch.arange(size).view(-1, 1, 1)
    cols = torch.arange(size).view(1, -1, 1)
    items = []
    for i in range(count):
        label = i % classes
        wave = ((rows * (label + 1) + cols * (classes - label)) // 5) % 2 * 90
        img = (torch.randint(0, 120, (size, size, 3), generator=g) + wave).clamp(0, 255).to(torch.uint8)
        path = os.path.join(root, f"{i:05d}_{label}.ppm")
        with open(path, "wb") as f:
            f.write(b"P6\n%d %d\n255\n" % (size, size))
            f.write(bytes(img.flatten().tolist()))
        items.append((path, label))
    return items


class PPMFolder(Dataset):
    def __init__(self, items, flip=True):
        self.items = items
        self.flip = flip

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        path, label = self.items[idx]
        with open(path, "rb") as f:
            f.readline()
            width, height = map(int, f.readline().split())
            f.readline()
            raw = f.read()
        img = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)
        if self.flip and idx % 2:
            img = img.flip(2)
        return img.float().div_(255).sub_(MEAN).div_(STD), label


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride > 1 or cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


def build_model(classes, width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--images", type=int, default=768)
    p.add_argument("--size", type=int, default=48)
    p.add_argument("--classes", type=int, default=8)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()

    torch.manual_seed(args.seed)
    random.seed(args.seed)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as root:
        items = write_folder(root, args.images, args.classes, args.size, args.seed)
        loader = DataLoader(PPMFolder(items), batch_size=args.batch_size, shuffle=True, drop_last=True)
        model = build_model(args.classes, 32)
        opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, fused=True)
        start = time.time()
        for epoch in range(args.epochs):
            model.train()
            total = torch.zeros(())
            for images, labels in loader:
                loss = F.cross_entropy(model(images), labels)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                total += loss.detach()
            print(f"epoch {epoch} loss {total.item() / len(loader):.3f} time {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
