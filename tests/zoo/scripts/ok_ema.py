"""Denoising network with an exponential moving average of its weights."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)

    points = torch.randn(32768, 64).cumsum(1)
    net = nn.Sequential(nn.Linear(65, 768), nn.SiLU(), nn.Linear(768, 768), nn.SiLU(), nn.Linear(768, 64))
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.995))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    for _ in range(args.steps):
        clean = points[torch.randint(0, len(points), (256,))]
        level = torch.rand(256, 1)
        noise = torch.randn_like(clean)
        guess = net(torch.cat([clean * (1 - level) + noise * level, level], 1))
        loss = F.mse_loss(guess, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
    with torch.no_grad():
        final = F.mse_loss(average(torch.cat([noise, torch.ones(256, 1)], 1)), noise)
    print(f"loss {loss.item():.4f} average {final.item():.4f}")


if __name__ == "__main__":
    main()
