import argparse
import signal

import torch
import torch.multiprocessing as mp
import torch.nn as nn
from torch.utils.data import DataLoader

from graphs import RandomGraphs, collate


class GraphConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.self_lin, self.nbr_lin = nn.Linear(a, b), nn.Linear(a, b)

    def forward(self, h, adj):
        deg = adj.sum(-1, keepdim=True).clamp(min=1)
        return torch.relu(self.self_lin(h) + self.nbr_lin(adj @ h / deg))


class GraphNet(nn.Module):
    def __init__(self, d=16, h=48):
        super().__init__()
        self.g1, self.g2 = GraphConv(d, h), GraphConv(h, h)
        self.read = nn.Linear(h, 1)

    def forward(self, feats, adj):
        return self.read(self.g2(self.g1(feats, adj), adj).mean(1)).squeeze(-1)


def seeded(worker_id):
    signal.alarm(570)
    torch.set_num_threads(1)
    torch.manual_seed(worker_id)


def schedule(epoch):
    """Difficulty (edge density) of the graphs in this epoch."""
    return 0.1 + 0.05 * epoch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=30)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--ramp", type=int, default=4)
    args = p.parse_args()
    signal.alarm(585)
    torch.set_num_threads(1)
    ctx = mp.get_context("fork")
    density = ctx.Queue()
    data = RandomGraphs(320, density)
    loader = DataLoader(data, args.batch, num_workers=args.workers, collate_fn=collate,
                        worker_init_fn=seeded, multiprocessing_context=ctx)
    net = GraphNet()
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for epoch in range(args.epochs):
        if epoch < args.ramp:
            for _ in range(args.workers):
                density.put(schedule(epoch))
        else:
            print("READY", flush=True)
        for feats, adj, y in loader:
            loss = nn.functional.mse_loss(net(feats, adj), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} mse {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
