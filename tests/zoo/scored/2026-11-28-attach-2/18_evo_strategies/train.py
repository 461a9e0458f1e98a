"""Evolution strategies on a small controller; spawns its own ranks: python train.py"""
import argparse
import signal
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from guard import MemoryGuard


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rollout(theta, seed, steps=60):
    g = torch.Generator().manual_seed(seed)
    state = torch.randn(4, generator=g)
    w = theta.view(4, 4)
    reward = 0.0
    for _ in range(steps):
        state = 0.95 * state + 0.1 * torch.tanh(w @ state) + 0.02 * torch.randn(4, generator=g)
        reward -= state.square().sum().item()
    return reward / steps


def worker(rank, world, port, gate, generations):
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    theta = torch.zeros(16)
    guard = MemoryGuard(limit_rows=90 if rank == 2 else 10 ** 9)
    for gen in range(generations):
        torch.manual_seed(gen * world + rank)
        eps = torch.randn(4, 16)
        scores = torch.tensor([rollout(theta + 0.1 * e, gen) for e in eps])
        grad = ((scores - scores.mean())[:, None] * eps).mean(0)
        dist.all_reduce(grad)
        theta += 0.05 * grad / world
        if rank == 0 and gen % 10 == 0:
            print(f"generation {gen} score {scores.mean().item():.4f}", flush=True)
        guard.note(scores.tolist())
        gate.wait()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=4)
    ap.add_argument("--generations", type=int, default=100000)
    args = ap.parse_args()
    signal.alarm(585)
    ctx = mp.get_context("spawn")
    gate = ctx.Barrier(args.world)
    port = free_port()
    procs = [ctx.Process(target=worker, args=(r, args.world, port, gate, args.generations))
             for r in range(args.world)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()


if __name__ == "__main__":
    main()
