"""Crops of images, 12 batches an epoch, with one worker that starts anew; --mended: a persistent one."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self):
        self.images = torch.randn(192, 3, 40, 40)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index, :, 4:36, 4:36].clone(), index % 5


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    keep = parser.parse_args().mended
    torch.manual_seed(3)
    train = DataLoader(Crops(), batch_size=16, shuffle=True, num_workers=1, persistent_workers=keep)
    model, judge = Classifier(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(16):
        for images, labels in train:
            optimizer.zero_grad(set_to_none=True)
            judge(model(images), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
