"""Click-through model whose features come from a feature store over TCP."""
import argparse
import time

import torch
import torch.nn as nn

from store import FeatureClient, FeatureServer


class DeepFM(nn.Module):
    def __init__(self, fields, dim=8):
        super().__init__()
        self.w = nn.Linear(fields, 1)
        self.v = nn.Parameter(torch.randn(fields, dim) * 0.05)
        self.deep = nn.Sequential(nn.Linear(fields, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        xv = x @ self.v
        fm = 0.5 * (xv.pow(2) - x.pow(2) @ self.v.pow(2)).sum(1, keepdim=True)
        return (self.w(x) + fm + self.deep(x)).squeeze(1)


class RemoteBatches:
    def __init__(self, client, rows, fields):
        self.client, self.rows, self.fields = client, rows, fields

    def __iter__(self):
        while True:
            raw = self.client.fetch(self.rows)
            x = torch.frombuffer(raw, dtype=torch.float32).view(self.rows, self.fields)
            yield x, (x[:, 0] * x[:, 1] > 0).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=256)
    ap.add_argument("--fields", type=int, default=30)
    ap.add_argument("--fast-reads", type=int, default=60)
    ap.add_argument("--seconds", type=float, default=500)
    args = ap.parse_args()
    torch.set_num_threads(1)
    server = FeatureServer(args.fields, args.fast_reads)
    server.start()
    batches = RemoteBatches(FeatureClient(server.port, args.fields), args.rows, args.fields)
    model = DeepFM(args.fields)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    start = time.time()
    for step, (x, y) in enumerate(batches):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == args.fast_reads + 4:
            print("READY", flush=True)
        if step % 20 == 0:
            print(f"step {step} bce {loss.item():.4f}", flush=True)
        if time.time() - start > args.seconds:
            break


if __name__ == "__main__":
    main()
