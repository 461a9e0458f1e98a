"""1-D diffusion model with a crowd of housekeeping threads."""
import argparse
import threading
import time

import torch
import torch.nn as nn


class Housekeeper(threading.Thread):
    """Wakes up now and then to look at one gauge of the run."""

    def __init__(self, name, gauges, period, stop):
        super().__init__(daemon=True, name=name)
        self.gauges, self.period, self.stop = gauges, period, stop
        self.lock = threading.Lock()
        self.history = []

    def run(self):
        while not self.stop.wait(self.period):
            with self.lock:
                self.history.append(self.gauges.get(self.name.split("-")[0], 0.0))


class SleepyFlusher(threading.Thread):
    def __init__(self, k):
        super().__init__(daemon=True, name=f"flush-{k}")

    def run(self):
        while True:
            time.sleep(30)


class Denoiser(nn.Module):
    def __init__(self, n=64, h=192):
        super().__init__()
        self.t = nn.Embedding(100, h)
        self.i, self.m, self.o = nn.Linear(n, h), nn.Linear(h, h), nn.Linear(h, n)

    def forward(self, x, t):
        h = torch.relu(self.i(x) + self.t(t))
        return self.o(torch.relu(self.m(h)))


def diffusion_loss(net, batch):
    n = batch.size(0)
    t = torch.randint(0, 100, (n,))
    keep = torch.cos(t / 100 * 1.57).unsqueeze(1)
    noise = torch.randn_like(batch)
    noised = keep * batch + (1 - keep ** 2).sqrt() * noise
    return (net(noised, t) - noise).pow(2).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--threads", type=int, default=24)
    ap.add_argument("--minutes", type=float, default=8)
    args = ap.parse_args()
    torch.set_num_threads(1)
    stop, gauges = threading.Event(), {}
    crew = [Housekeeper(f"loss-{i}", gauges, 5 + i, stop) for i in range(args.threads // 2)]
    crew += [SleepyFlusher(i) for i in range(args.threads // 2)]
    for t in crew:
        t.start()
    net = Denoiser()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    end, step = time.time() + 60 * args.minutes, 0
    grid = torch.linspace(0, 6.28, 64)
    while time.time() < end:
        clean = torch.sin(grid * (1 + 3 * torch.rand(args.batch, 1)))
        loss = diffusion_loss(net, clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        gauges["loss"] = loss.item()
        if step == 150:
            print("READY", flush=True)
        if step % 500 == 0:
            print(f"step {step} loss {gauges['loss']:.4f}", flush=True)
    stop.set()


if __name__ == "__main__":
    main()
