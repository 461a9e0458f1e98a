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
        return self.out(h.amax(1)).view(-1, 21, 3), h


LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)


def percentiles(t):
    flat = t.flatten()
    return [flat.kthvalue(int(q * flat.numel())).values for q in LEVELS]


class ErrorStats:
    """Mean and percentiles of the joint error; features go to the embedding plot."""

    def __init__(self, refresh):
        self.errors, self.features = [], []
        self.refresh = refresh
        self.summary = (float("nan"), float("nan"))

    def add(self, err, feats):
        self.errors.append(err)
        self.features.append(feats)
        if len(self.errors) % self.refresh == 0:
            every = torch.cat(self.errors)
            self.summary = (every.mean(), percentiles(every)[2])


class StreamingStats:
    def __init__(self, refresh):
        self.n, self.total, self.refresh = 0, 0.0, refresh
        self.features = None
        self.summary = (float("nan"), float("nan"))

    def add(self, err, feats):
        err = err.detach()
        self.features = feats.detach().amax(1)
        self.n += 1
        self.total = self.total + err.mean()
        if self.n % self.refresh == 0:
            self.summary = (self.total / self.n, percentiles(err)[2])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=140)
    args = ap.parse_args()
    torch.manual_seed(71)
    refresh = {1: 6, 2: 2, 3: 1}[args.level]
    stats = (StreamingStats if args.fixed else ErrorStats)(refresh)
    model = PointNet(48)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    clouds = torch.randn(1024, 128, 3)
    joints = clouds[:, :21] * 0.5
    for step in range(1, args.steps + 1):
        i = torch.randint(0, 1024, (96,))
        pred, feats = model(clouds[i])
        err = (pred - joints[i]).square().sum(-1)
        loss = err.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats.add(err.sqrt(), feats)
        if step % 50 == 0:
            m, p = stats.summary
            print(f"step {step} loss {loss.item():.4f} mean {float(m):.3f} p90 {float(p):.3f}")


if __name__ == "__main__":
    main()
