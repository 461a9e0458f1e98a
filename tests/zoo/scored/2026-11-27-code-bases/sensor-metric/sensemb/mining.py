"""Semi-hard triplets (FaceNet): the closest negative that is farther than the positive, within the margin;
where none is, the negative that is nearest to the anchor."""
import numpy as np
import torch


def semihard(dist, labels, margin):
    d, y = dist.numpy(), labels.numpy()
    n = len(y)
    anchors, positives, negatives = [], [], []
    for a in range(n):
        others = [k for k in range(n) if y[k] != y[a]]
        for p in range(n):
            if p == a or y[p] != y[a]:
                continue
            best, best_d = -1, np.inf
            for k in others:
                if d[a, p] < d[a, k] < d[a, p] + margin and d[a, k] < best_d:
                    best, best_d = k, d[a, k]
            if best < 0:
                best = min(others, key=lambda k: d[a, k])
            anchors.append(a)
            positives.append(p)
            negatives.append(best)
    return torch.tensor(anchors), torch.tensor(positives), torch.tensor(negatives)


def semihard_mat(dist, labels, margin):
    same = labels[:, None] == labels[None]
    a, p = (same & ~torch.eye(len(labels), dtype=torch.bool)).nonzero(as_tuple=True)
    rows, ap = dist[a], dist[a, p][:, None]
    other = ~same[a]
    band = other & (rows > ap) & (rows < ap + margin)
    inf = torch.tensor(float("inf"))
    in_band = torch.where(band, rows, inf)
    nearest = torch.where(other, rows, inf).argmin(1)
    return a, p, torch.where(band.any(1), in_band.argmin(1), nearest)


MINERS = {"semihard": semihard, "semihard-mat": semihard_mat}
