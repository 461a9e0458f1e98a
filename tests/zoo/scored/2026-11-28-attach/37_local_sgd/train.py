"""Local SGD: ranks meet through the key-value store once per round."""
import argparse
import io
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn

PATIENCE = 12


class StoreExchange:
    """Model averaging without collectives: everybody publishes, everybody reads."""

    def __init__(self, store, rank, world):
        self.store, self.rank, self.world = store, rank, world

    def publish(self, rnd, vec):
        buf = io.BytesIO()
        torch.save(vec, buf)
        self.store.set(f"r{rnd}/{self.rank}", buf.getvalue())

    def average(self, rnd):
        keys = [f"r{rnd}/{r}" for r in range(self.world)]
        self.store.wait(keys, timedelta(seconds=560))
        vecs = [torch.load(io.BytesIO(self.store.get(k))) for k in keys]
        return torch.stack(vecs).mean(0)


def inner_loop(net, opt, rank, steps):
    total = 0.0
    for _ in range(steps):
        x = torch.randn(48, 12)
        noise = 5.0 if rank == 2 else 0.1
        y = x.cumsum(1)[:, -1:] + noise * torch.randn(48, 1)
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / steps


def fit(rank, world, exchange, args):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 1))
    opt = torch.optim.SGD(net.parameters(), 1e-3)
    best, stale = float("inf"), 0
    for rnd in range(args.rounds):
        value = inner_loop(net, opt, rank, args.inner)
        best, stale = (value, 0) if value < 0.9 * best else (best, stale + 1)
        if rank == 2 and stale >= PATIENCE:
            print("READY", flush=True)
            return net  # no progress any more
        vec = nn.utils.parameters_to_vector(net.parameters()).detach()
        exchange.publish(rnd, vec)
        nn.utils.vector_to_parameters(exchange.average(rnd), net.parameters())
        if rank == 0 and rnd % 5 == 0:
            print(f"round {rnd} loss {value:.4f}", flush=True)
    return net


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3000)
    ap.add_argument("--inner", type=int, default=8)
    args = ap.parse_args()
    signal.alarm(585)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    store = dist.PrefixStore("lsgd", dist.distributed_c10d._get_default_store())
    fit(rank, world, StoreExchange(store, rank, world), args)


if __name__ == "__main__":
    main()
