"""Convolutional variational autoencoder."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Vae(nn.Module):
    def __init__(self, latent=32):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 24, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48 * 49, 2 * latent),
        )
        self.decode = nn.Sequential(
            nn.Linear(latent, 48 * 49),
            nn.ReLU(),
            nn.Unflatten(1, (48, 7, 7)),
            nn.ConvTranspose2d(48, 24, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(24, 1, 4, stride=2, padding=1),
        )

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decode(z), mean, log_var


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)

    images = torch.rand(4096, 1, 28, 28)
    loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
    model = Vae()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for (x,) in loader:
            out, mean, log_var = model(x)
            rebuilt = F.binary_cross_entropy_with_logits(out, x, reduction="sum") / len(x)
            spread = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
            loss = rebuilt + spread
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
