"""A CNN whose data set augments images in plain Python, in the process that trains."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def jitter(image):
    gain, offset = random.uniform(0.8, 1.2), random.uniform(-0.1, 0.1)
    out = []
    for row in image:
        new = []
        for value in row:
            new.append(min(1.0, max(0.0, value * gain + offset + (random.random() - 0.5) * 0.04)))
        out.append(new)
    return out


def flip(image):
    return [row[::-1] for row in image] if random.random() < 0.5 else image


class Images(Dataset):
    def __init__(self):
        self.images = [[[random.random() for _ in range(24)] for _ in range(24)] for _ in range(64)]

    def __len__(self):
        return 32 * 90

    def __getitem__(self, index):
        image = flip(jitter(self.images[index % 64]))
        x = torch.tensor(image).unsqueeze(0)
        return (x - x.mean()) / (x.std() + 1e-5), index % 10


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 11 * 11, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Images(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


main()
