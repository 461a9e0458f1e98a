"""Three spawned ranks, gradients over gloo, the turn is given through shared memory."""
import argparse
import os
import signal
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from turns import Coordinator, Follower


def port():
    s = socket.socket()
    s.bind(("", 0))
    n = s.getsockname()[1]
    s.close()
    return n


def batch(g):
    x = torch.randn(32, 25, generator=g)
    return x, x.sum(1, keepdim=True).tanh()


def rank_main(rank, cfg, tickets, master_port):
    signal.alarm(580)
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master_port),
                      RANK=str(rank), WORLD_SIZE=str(cfg.world))
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    turn = Coordinator(tickets, cfg.world) if rank == 0 else Follower(tickets, rank)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(25, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    for it in range(1, cfg.iters):
        turn.begin(it)
        x, y = batch(g)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        turn.report(it, loss.item())
        if rank == 0 and it % 50 == 0:
            print(f"iteration {it} mse {loss.item():.4f} ranks {turn.active}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=3)
    ap.add_argument("--iters", type=int, default=10 ** 6)
    cfg = ap.parse_args()
    signal.alarm(585)
    tickets = torch.zeros(cfg.world, dtype=torch.int64).share_memory_()
    mp.spawn(rank_main, args=(cfg, tickets, port()), nprocs=cfg.world)
