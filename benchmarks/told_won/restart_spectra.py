"""Short epochs over spectra whose two workers start anew each time; --mended: persistent workers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        wave = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return torch.stft(wave, 16, return_complex=True, window=torch.ones(16)).abs().flatten()[:60], index % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    persistent = parser.parse_args().mended
    torch.manual_seed(0)
    loader = DataLoader(Spectra(), batch_size=12, num_workers=2, persistent_workers=persistent)
    model = nn.Sequential(nn.Linear(60, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(14):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
