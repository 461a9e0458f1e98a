#!/usr/bin/env python3
"""Environmental sound classification, short epochs, background loading."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--clips", default=192, type=int)
parser.add_argument("--samples", default=8192, type=int)
parser.add_argument("--classes", default=10, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int)
parser.add_argument("-j", "--workers", default=1, type=int)
parser.add_argument("--epochs", default=24, type=int)
parser.add_argument("--lr", default=2e-3, type=float)
parser.add_argument("--seed", default=6, type=int)


class Clips(Dataset):
    def __init__(self, args):
        g = torch.Generator().manual_seed(args.seed)
        self.labels = torch.arange(args.clips) % args.classes
        t = torch.arange(args.samples) / 8000.0
        tones = torch.sin(2 * torch.pi * (200.0 + 150.0 * self.labels.unsqueeze(1)) * t)
        self.waves = tones + 1.5 * torch.randn(args.clips, args.samples, generator=g)
        self.window = torch.hann_window(256)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        spec = torch.stft(self.waves[i], 256, 128, window=self.window, return_complex=True)
        return torch.log1p(spec.abs())[:64].unsqueeze(0), self.labels[i]


def create_loader(dataset, args):
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
        prefetch_factor=3,
        persistent_workers=True,
    )


def create_model(classes):
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))
    return nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2), block(32, 64),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def train_one_epoch(epoch, model, loader, optimizer):
    model.train()
    total = torch.zeros(())
    for inputs, target in loader:
        loss = F.cross_entropy(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total / len(loader)


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    loader = create_loader(Clips(args), args)
    model = create_model(args.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, fused=True)
    start = time.time()
    for epoch in range(args.epochs):
        loss = train_one_epoch(epoch, model, loader, optimizer)
        if epoch % 8 == 7:
            print(f"Train: {epoch} Loss: {loss.item():.3f} Time: {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
