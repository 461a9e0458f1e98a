"""Metric learning: batch-hard triplets over synthetic identities."""
import argparse
import random
import time
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_gallery(n_ids, per_id, size, seed):
    """Records as they would come from an annotation file."""
    g = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    proto = F.interpolate(torch.randn(n_ids, 3, 8, 4, generator=g), size=(size, size // 2),
                          mode="bilinear", align_corners=False)
    records, index = [], defaultdict(list)
    for pid in range(n_ids):
        for shot in range(per_id):
            index[pid].append(len(records))
            records.append({
                "pid": pid,
                "camera": rng.randrange(6),
                "bbox": [rng.random() for _ in range(4)],
                "track": {"id": f"{pid:04d}_{shot:03d}", "frames": [[rng.random()] for _ in range(4)]},
                "attrs": {"bag": [rng.random() < 0.3], "hat": [rng.random() < 0.1]},
            })
    return records, index, proto


class PKSampler:
    """P identities with K shots each."""

    def __init__(self, index, p, k, iters, seed):
        self.index, self.p, self.k, self.iters = index, p, k, iters
        self.rng = random.Random(seed)
        self.ids = sorted(index)

    def __iter__(self):
        for _ in range(self.iters):
            yield [i for pid in self.rng.sample(self.ids, self.p)
                   for i in self.rng.sample(self.index[pid], self.k)]


class EmbeddingNet(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        def stage(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        self.features = nn.Sequential(stage(3, width, 1), stage(width, width, 2),
                                      stage(width, 2 * width, 1), stage(2 * width, 2 * width, 2),
                                      stage(2 * width, 4 * width, 2))
        self.fc = nn.Linear(4 * width, dim)

    def forward(self, x):
        return F.normalize(self.fc(self.features(x).amax(dim=(2, 3))), dim=1)


def batch_hard(emb, pid, margin):
    dist = (2 - 2 * emb @ emb.T).clamp(min=1e-6).sqrt()
    same = pid[:, None] == pid[None]
    hardest_pos = dist.masked_fill(~same, 0).amax(1)
    hardest_neg = dist.masked_fill(same, 10).amin(1)
    return F.relu(hardest_pos - hardest_neg + margin).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ids", type=int, default=1000)
    ap.add_argument("--per-id", type=int, default=5)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("-P", type=int, default=8)
    ap.add_argument("-K", type=int, default=4)
    ap.add_argument("--iters", type=int, default=130)
    ap.add_argument("--margin", type=float, default=0.3)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    records, index, proto = make_gallery(args.ids, args.per_id, args.size, args.seed)
    print(f"{len(records)} crops of {args.ids} people")
    sampler = PKSampler(index, args.P, args.K, args.iters, args.seed)
    net = EmbeddingNet(args.width, 64)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    start, running = time.time(), 0.0
    for it, rows in enumerate(sampler, 1):
        pid = torch.tensor([records[r]["pid"] for r in rows])
        images = proto[pid] + 0.6 * torch.randn(len(rows), *proto.shape[1:])
        loss = batch_hard(net(images), pid, args.margin)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = loss.item() if it == 1 else 0.95 * running + 0.05 * loss.item()
        if it % 20 == 0:
            print(f"iter {it} triplet {running:.4f} {(time.time() - start) / it * 1000:.0f} ms/iter",
                  flush=True)


if __name__ == "__main__":
    main()
