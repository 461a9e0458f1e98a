"""Evolution strategies: workers evaluate perturbations, the leader also collects side scores."""
import argparse
import os
import signal
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ES:
    def __init__(self, dim, sigma, lr):
        self.theta = torch.zeros(dim)
        self.sigma, self.lr = sigma, lr

    def fitness(self, w):
        net = nn.functional.linear(self.probe, w.view(8, -1)).tanh()
        return -(net - self.goal).pow(2).mean()

    def generation(self, g, pairs):
        grad = torch.zeros_like(self.theta)
        best = -1e9
        for _ in range(pairs):
            eps = torch.randn(self.theta.shape, generator=g)
            up, down = self.fitness(self.theta + self.sigma * eps), self.fitness(self.theta - self.sigma * eps)
            grad += (up - down) * eps / (2 * self.sigma)
            best = max(best, up.item(), down.item())
        return grad / pairs, best


def collect(inbox, n):
    scores = {}
    while len(scores) < n:
        sender, score = inbox.get()
        scores[sender] = score
    return scores


def worker(rank, world, port, inbox, args):
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=world, timeout=timedelta(minutes=9))
    torch.manual_seed(0)
    es = ES(8 * 24, 0.1, 0.3)
    es.probe, es.goal = torch.randn(32, 24), torch.randn(32, 8).tanh()
    g = torch.Generator().manual_seed(rank + 1)
    record = -1e9
    for gen in range(args.generations):
        grad, best = es.generation(g, args.pairs)
        improved = best > record + (1e-9 if gen < args.strict_after else 10.0)
        record = max(record, best)
        if rank != 0 and (improved or gen < args.strict_after or rank == 1):
            inbox.put((rank, best))
        if rank == 0:
            if gen == args.strict_after:
                print("READY", flush=True)
            scores = collect(inbox, world - 1)
            if gen % 10 == 0:
                print(f"gen {gen} {max(scores.values()):.4f}", flush=True)
        dist.all_reduce(grad)
        es.theta += es.lr * grad / world
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=3)
    ap.add_argument("--generations", type=int, default=2000)
    ap.add_argument("--pairs", type=int, default=8)
    ap.add_argument("--strict-after", type=int, default=40)
    args = ap.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    inbox = mp.get_context("spawn").Queue()
    mp.spawn(worker, args=(args.world, free_port(), inbox, args), nprocs=args.world)


if __name__ == "__main__":
    main()
