import os, signal, argparse

import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ScanStream:
    def __init__(self, batch, classes, seed):
        self.batch, self.classes = batch, classes
        self.g = torch.Generator().manual_seed(seed)

    def next(self, points):
        label = torch.randint(self.classes, (self.batch,), generator=self.g)
        cloud = torch.randn(self.batch, points, 3, generator=self.g)
        cloud[..., 0] *= 1 + label[:, None] / self.classes
        return cloud, label


class PointNetLite(nn.Module):
    def __init__(self, classes, k=8, width=32):
        super().__init__()
        self.k = k
        self.edge = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, cloud):
        idx = knn(cloud, self.k)
        b = torch.arange(cloud.shape[0])[:, None, None]
        near = cloud[b, idx]
        centre = cloud[:, :, None].expand_as(near)
        feat = self.edge(torch.cat([centre, near - centre], -1)).amax(2)
        return self.head(feat.amax(1))


def knn(cloud, k):
    with torch.no_grad():
        d = torch.cdist(cloud, cloud)
        order = d.argsort(dim=-1)
        return order[:, :, 1:k + 1]


def parse():
    a = argparse.ArgumentParser(description="point cloud classification")
    a.add_argument('--points', type=int, default=128)
    a.add_argument('--dense-rank', type=int, default=1)
    a.add_argument('--dense-points', type=int, default=1600)
    a.add_argument('--dense-from', type=int, default=60)
    a.add_argument('--total', type=int, default=10**6)
    return a.parse_args()


def main():
    signal.alarm(580)
    torch.set_num_threads(1)
    cfg = parse()
    dist.init_process_group('gloo')
    rank = dist.get_rank()
    net = DDP(PointNetLite(classes=10))
    opt = torch.optim.Adam(net.parameters(), 5e-4)
    stream = ScanStream(batch=6, classes=10, seed=rank)
    points = cfg.points
    for step in range(cfg.total):
        if step == cfg.dense_from and rank == cfg.dense_rank:
            points = cfg.dense_points
        cloud, label = stream.next(points)
        loss = torch.nn.functional.cross_entropy(net(cloud), label)
        opt.zero_grad(); loss.backward(); opt.step()
        if rank == 0 and step == cfg.dense_from + 2:
            print("\nREADY\n", end="", flush=True)
        if rank == 0 and step % 10 == 0:
            print(f'{step:6d} {loss.item():.4f}', flush=True)


if __name__ == '__main__':
    main()
