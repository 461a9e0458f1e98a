"""A convolution on pictures that are kept compressed: decoding and resizing takes longer than the step."""

import argparse
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 112


class Pictures(Dataset):
    def __init__(self, count):
        draw = torch.Generator().manual_seed(0)
        self.labels = torch.randint(10, (count,), generator=draw)
        self.blobs = []
        for label in self.labels.tolist():
            pixels = torch.randint(0, 64, (3, SIDE, SIDE), generator=draw) + 16 * label
            self.blobs.append(zlib.compress(bytes(pixels.to(torch.uint8).flatten().tolist()), 6))

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, index):
        raw = bytearray(zlib.decompress(self.blobs[index]))
        pixels = torch.frombuffer(raw, dtype=torch.uint8).view(1, 3, SIDE, SIDE).float() / 255
        pixels = nn.functional.interpolate(pixels, size=224, mode="bicubic", antialias=True)
        small = nn.functional.interpolate(pixels, size=32, mode="bicubic", antialias=True)[0]
        return (small - small.mean()) / small.std(), self.labels[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Pictures(args.samples), batch_size=16, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 48, 3, stride=2), nn.SiLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    for _ in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()
