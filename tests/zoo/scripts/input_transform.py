"""Image classifier on a folder-like data set with augmentation per sample."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count, blurs):
        g = torch.Generator().manual_seed(1)
        self.images = torch.randint(0, 256, (count, 3, 64, 64), generator=g, dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (count,), generator=g)
        self.blurs = blurs
        k = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0])
        k = torch.outer(k, k)
        self.kernel = (k / k.sum()).expand(3, 1, 5, 5).contiguous()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i].float() / 255
        if random.random() < 0.5:
            image = image.flip(-1)
        top, left = random.randrange(9), random.randrange(9)
        image = F.pad(image, (4, 4, 4, 4))[:, top : top + 64, left : left + 64]
        image = (image - image.mean()) * random.uniform(0.8, 1.2) + image.mean()
        for _ in range(self.blurs):
            image = F.conv2d(F.pad(image, (2, 2, 2, 2)), self.kernel, groups=3)
        return image, self.labels[i]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--prepared", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)

    blurs = {1: 2, 2: 5, 3: 14}[args.level]
    workers = args.workers if args.workers is not None else (2 if args.fixed else 0)
    data = Pictures(1024, blurs)
    if args.prepared:
        data, workers = [data[i] for i in range(len(data))], 0
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.Conv2d(48, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    while step < args.steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
