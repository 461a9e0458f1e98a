"""Stateful LSTM on a long multivariate series with truncated back-propagation through time."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class StatefulLSTM(nn.Module):
    def __init__(self, channels, hidden, layers):
        super().__init__()
        self.rnn = nn.LSTM(channels, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, channels)

    def forward(self, x, state):
        h, state = self.rnn(x, state)
        return self.out(h), state


def series(streams, length, channels):
    t = torch.arange(length).view(1, -1, 1) / 20.0
    freq = 0.5 + torch.rand(streams, 1, channels)
    return torch.sin(freq * t) + 0.3 * torch.sin(3.1 * freq * t) + 0.05 * torch.randn(streams, length, channels)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--streams", type=int, default=64)
    p.add_argument("--chunk", type=int, default=40)
    p.add_argument("--chunks", type=int, default=60)
    p.add_argument("--passes", type=int, default=2)
    p.add_argument("--channels", type=int, default=8)
    p.add_argument("--hidden", type=int, default=320)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)
    data = series(a.streams, a.chunk * a.chunks + 1, a.channels)
    model = StatefulLSTM(a.channels, a.hidden, 2)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    start = time.time()
    for epoch in range(a.passes):
        state = None
        total = torch.zeros(())
        for c in range(a.chunks):
            window = data[:, c * a.chunk:(c + 1) * a.chunk + 1]
            pred, state = model(window[:, :-1], state)
            state = tuple(s.detach() for s in state)
            loss = F.mse_loss(pred, window[:, 1:])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            opt.step()
            total += loss.detach()
        print(f"pass {epoch} mse {total.item() / a.chunks:.4f} {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
