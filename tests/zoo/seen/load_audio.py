"""Keyword spotting on MFCC-like frames, background loader."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Keywords(Dataset):
    def __init__(self, n=3200):
        rng = np.random.default_rng(8)
        self.frames = rng.standard_normal((n, 64, 20)).astype(np.float32)
        self.word = rng.integers(0, 12, n)

    def __len__(self):
        return len(self.word)

    def __getitem__(self, i):
        f = self.frames[i]
        start = int(i) % 8
        f = np.roll(f, start, axis=0)
        return {"frames": torch.from_numpy(f), "word": int(self.word[i])}


class KWS(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.lift = nn.Linear(20, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, 12)

    def forward(self, frames):
        h, _ = self.rnn(torch.relu(self.lift(frames)))
        return self.head(h[:, -1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    a = ap.parse_args()
    torch.manual_seed(8)
    loader = DataLoader(Keywords(), batch_size=64, shuffle=True, num_workers=1, prefetch_factor=4,
                        persistent_workers=True, drop_last=True)
    model, done = KWS(), 0
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    while done < a.steps:
        for b in loader:
            loss = nn.functional.cross_entropy(model(b["frames"]), b["word"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            if done == a.steps:
                break
    print("loss", loss.item())


if __name__ == "__main__":
    main()
