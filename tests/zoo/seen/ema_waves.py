"""Waveform classifier evaluated with an exponential moving average of its weights."""
import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class WaveNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.rnn = nn.GRU(8, d, batch_first=True)
        self.head = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 6))

    def forward(self, wave):
        frames = wave.unflatten(1, (-1, 8))
        return self.head(self.rnn(frames)[0].mean(1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(16)
    net = WaveNet()
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.995))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    t = torch.linspace(0, 1, 512)
    for step in range(1, args.steps + 1):
        y = torch.randint(0, 6, (128,))
        wave = torch.sin((4 + 3 * y.float()[:, None]) * 6.283 * t + torch.rand(128, 1) * 6.283)
        wave += 0.2 * torch.randn_like(wave)
        loss = nn.functional.cross_entropy(net(wave), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update_parameters(net)
        if step % 80 == 0:
            with torch.no_grad():
                acc = (ema(wave).argmax(1) == y).float().mean()
            print(f"{step} loss {loss.item():.4f} ema acc {acc.item():.3f}")
