"""Denoising autoencoder, scored by an external script after every few epochs."""
import argparse
import pathlib
import signal
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

HERE = pathlib.Path(__file__).resolve().parent


class DAE(nn.Module):
    def __init__(self, d=100):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(),
                               nn.Linear(80, d))

    def forward(self, x):
        return x + self.f(x)


class ExternalScore:
    def __init__(self, workdir):
        self.workdir = pathlib.Path(workdir)

    def __call__(self, net, epoch):
        src = self.workdir / f"weights_{epoch}.txt"
        total = sum(p.abs().sum().item() for p in net.parameters())
        src.write_text(f"{epoch} {total}\n")
        return self._launch(src)

    def _launch(self, src):
        cmd = [sys.executable, str(HERE / "score.py"), str(src)]
        done = subprocess.run(cmd, capture_output=True, text=True)
        return float(done.stdout or "nan")


def one_epoch(net, opt, steps, noise):
    acc = 0.0
    for _ in range(steps):
        clean = torch.randn(64, 10) @ torch.ones(10, 100).tril()
        noisy = clean + noise * torch.randn_like(clean)
        loss = (net(noisy) - clean).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc += loss.item()
    return acc / steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--noise", type=float, default=0.4)
    ap.add_argument("--score-every", type=int, default=2)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        score = ExternalScore(work)
        net = DAE()
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        for epoch in range(args.epochs):
            loss = one_epoch(net, opt, args.steps, args.noise)
            if epoch % args.score_every == 0:
                if epoch == 4:
                    print("READY", flush=True)
                print(f"epoch {epoch} l1 {loss:.4f} score {score(net, epoch):.2f}", flush=True)


if __name__ == "__main__":
    main()
