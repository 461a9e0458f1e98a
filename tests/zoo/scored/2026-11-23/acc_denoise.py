"""Audio denoising autoencoder with Accelerate."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Tones(Dataset):
    """Clips live in one tensor; a whole batch is read with one index operation."""

    def __init__(self, clips, samples, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(samples) / 8000.0
        freq = 100 + 900 * torch.rand(clips, 2, 1, generator=g)
        self.clean = torch.sin(2 * math.pi * freq * t).mean(1, keepdim=True)
        self.noisy = self.clean + 0.3 * torch.randn(clips, 1, samples, generator=g)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, idx):
        return self.noisy[idx], self.clean[idx]


class Denoiser(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.enc = nn.Conv1d(1, width, 16, stride=8, padding=4)
        self.mid = nn.Sequential(*[
            nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.GroupNorm(4, width), nn.GELU()) for _ in range(depth)])
        self.dec = nn.ConvTranspose1d(width, 1, 16, stride=8, padding=4)

    def forward(self, x):
        return self.dec(self.mid(F.gelu(self.enc(x))))


def main():
    epochs, batch_size = 5, 32
    set_seed(9)
    torch.set_num_threads(2)
    accelerator = Accelerator(cpu=True)
    data = Tones(960, 4096, 9)
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, drop_last=True), batch_size=None)
    model = Denoiser(width=72)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    start = time.time()
    for epoch in range(epochs):
        total = torch.zeros(())
        for noisy, clean in loader:
            loss = F.mse_loss(model(noisy), clean)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        accelerator.print(f"epoch {epoch} mse {total.item() / len(loader):.4f} {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
