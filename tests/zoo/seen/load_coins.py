"""Coin photos, light augmentation in the dataset."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Coins(Dataset):
    def __init__(self, n=2000, side=40):
        rng = np.random.default_rng(1)
        self.img = rng.integers(0, 255, (n, side, side, 3), dtype=np.uint8)
        self.lab = rng.integers(0, 7, n)
        self.rng = np.random.default_rng(2)

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        im = self.img[i]
        if self.rng.random() < 0.5:
            im = im[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(im)), self.lab[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()
    torch.manual_seed(1)
    loader = DataLoader(Coins(), batch_size=32, shuffle=True, drop_last=True)
    net = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
                        nn.Conv2d(24, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.ReLU(),
                        nn.Conv2d(48, 64, 3, 2, 1), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 7))
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, fused=True)
    n = 0
    while n < args.steps:
        for x, y in loader:
            x = x.permute(0, 3, 1, 2).float() / 255.0
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            n += 1
            if n % 60 == 0:
                print(n, loss.item())
            if n >= args.steps:
                break


if __name__ == "__main__":
    main()
