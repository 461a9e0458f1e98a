"""Two spawned ranks train a language-ish model; rank 1 runs the text metric as a tool."""
import argparse
import pathlib
import signal
import socket
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TOOL = pathlib.Path(__file__).resolve().with_name("bleu_tool.py")


class NextToken(nn.Module):
    def __init__(self, vocab=120, ctx=6, dim=24):
        super().__init__()
        self.e = nn.Embedding(vocab, dim)
        self.f = nn.Sequential(nn.Linear(ctx * dim, 96), nn.ReLU(), nn.Linear(96, vocab))

    def forward(self, t):
        return self.f(self.e(t).flatten(1))


def text_metric(samples):
    """Exit status of the tool is the number of broken lines."""
    proc = subprocess.Popen([sys.executable, str(TOOL), str(samples)], stdout=subprocess.PIPE)
    code = proc.wait()
    body = proc.stdout.read()
    return code, len(body)


class Job:
    def __init__(self, rank, args):
        self.rank, self.args = rank, args
        torch.manual_seed(0)
        self.model = DDP(NextToken())
        self.opt = torch.optim.Adam(self.model.parameters(), 1e-3)

    def step(self):
        t = torch.randint(0, 120, (32, 7))
        loss = nn.functional.cross_entropy(self.model(t[:, :-1]), t[:, -1])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def run(self):
        for step in range(1, self.args.steps + 1):
            value = self.step()
            if self.rank == 1 and step % 25 == 0:
                if step == 75:
                    print("READY", flush=True)
                code, size = text_metric(samples=100 if step < 75 else 4000)
                print(f"step {step} loss {value:.3f} broken {code} report {size}", flush=True)


def entry(rank, world, port, args):
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timeout=timedelta(minutes=9),
                            rank=rank, world_size=world)
    Job(rank, args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--world", type=int, default=2)
    args = ap.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(entry, (args.world, port, args), nprocs=args.world, join=True)
