"""Fit a coordinate network (Fourier features) to a procedural image, with averaged weights."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

conf = {
    "resolution": 192, "points": 4096, "bands": 64, "scale": 6.0, "hidden": 160, "layers": 4,
    "iterations": 500, "lr": 2e-3, "ema": 0.99, "seed": 87,
}


def target_image(n):
    axis = torch.linspace(-1, 1, n)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    r, a = (x ** 2 + y ** 2).sqrt(), torch.atan2(y, x)
    red = 0.5 + 0.5 * torch.sin(14 * r + 5 * a)
    green = (torch.sin(9 * x) * torch.cos(11 * y) > 0).float() * 0.8
    blue = torch.exp(-4 * r)
    coords = torch.stack([x, y], dim=-1).reshape(-1, 2)
    return coords, torch.stack([red, green, blue], dim=-1).reshape(-1, 3)


class FourierField(nn.Module):
    def __init__(self, bands, scale, hidden, layers):
        super().__init__()
        self.register_buffer("freq", torch.randn(2, bands) * scale)
        dims = [2 * bands] + [hidden] * layers
        body = []
        for i, o in zip(dims[:-1], dims[1:]):
            body += [nn.Linear(i, o), nn.GELU()]
        self.net = nn.Sequential(*body, nn.Linear(hidden, 3), nn.Sigmoid())

    def forward(self, xy):
        phase = 2 * math.pi * xy @ self.freq
        return self.net(torch.cat([phase.sin(), phase.cos()], dim=-1))


def psnr(mse):
    return -10 * math.log10(max(mse, 1e-12))


def main():
    torch.manual_seed(conf["seed"])
    coords, colours = target_image(conf["resolution"])
    field = FourierField(conf["bands"], conf["scale"], conf["hidden"], conf["layers"])
    averaged = AveragedModel(field, multi_avg_fn=get_ema_multi_avg_fn(conf["ema"]))
    optimizer = torch.optim.Adam(field.parameters(), lr=conf["lr"], fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, conf["iterations"])
    t0 = time.time()
    for it in range(1, conf["iterations"] + 1):
        rows = torch.randint(0, len(coords), (conf["points"],))
        loss = F.mse_loss(field(coords[rows]), colours[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        averaged.update_parameters(field)
        if it % 50 == 0:
            print(f"iter {it} mse {loss.item():.5f} psnr {psnr(loss.item()):.2f} "
                  f"{time.time() - t0:.1f}s", flush=True)
    with torch.no_grad():
        full = F.mse_loss(averaged(coords), colours).item()
    print(f"full image psnr {psnr(full):.2f}")


if __name__ == "__main__":
    main()
