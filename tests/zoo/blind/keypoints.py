"""Hand-keypoint regression from depth patches with running error statistics."""
import argparse

import torch
import torch.nn as nn


class PointNet(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inp = nn.Linear(3, d)
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)
        self.out = nn.Linear(d, 21 * 3)

    def forward(self, pts):
        h = torch.relu(self.inp(pts))
        h = torch.relu(self.a(h)) + h
        h = torch.relu(self.b(h)) + h
        return self.out(h.amax(1)).view(-1, 21, 3)


class ErrorStats:
    """Mean and 90th percentile joint error since the beginning of the run."""

    def __init__(self, refresh):
        self.errors = []
        self.refresh = refresh
        self.summary = (float("nan"), float("nan"))

    def add(self, err):
        self.errors.append(err)
        if len(self.errors) % self.refresh == 0:
            every = torch.cat(self.errors)
            self.summary = (every.mean(), every.flatten().kthvalue(int(0.9 * every.numel())).values)


class StreamingStats:
    def __init__(self, refresh):
        self.n, self.total, self.refresh = 0, 0.0, refresh
        self.recent = None
        self.summary = (float("nan"), float("nan"))

    def add(self, err):
        err = err.detach()
        self.n += 1
        self.total = self.total + err.mean()
        self.recent = err
        if self.n % self.refresh == 0:
            p90 = err.flatten().kthvalue(int(0.9 * err.numel())).values
            self.summary = (self.total / self.n, p90)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=140)
    args = ap.parse_args()
    torch.manual_seed(71)
    refresh = {1: 10, 2: 4, 3: 1}[args.level]
    stats = (StreamingStats if args.fixed else ErrorStats)(refresh)
    model = PointNet(48)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    clouds = torch.randn(1024, 128, 3)
    joints = clouds[:, :21] * 0.5
    for step in range(1, args.steps + 1):
        i = torch.randint(0, 1024, (96,))
        pred = model(clouds[i])
        err = (pred - joints[i]).square().sum(-1)
        loss = err.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats.add(err.sqrt())
        if step % 50 == 0:
            m, p = stats.summary
            print(f"step {step} loss {loss.item():.4f} mean {float(m):.3f} p90 {float(p):.3f}")


if __name__ == "__main__":
    main()
