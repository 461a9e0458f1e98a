"""Two-process sequence tagger with accumulation; gradients travel once per update."""
import argparse
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tagger(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(800, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.tag = nn.Linear(d, 9)

    def forward(self, x):
        return self.tag(self.rnn(self.emb(x))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(70)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(71 + rank)
    accum = 3
    for step in range(args.steps):
        opt.zero_grad()
        for k in range(accum):
            x = torch.randint(0, 800, (32, 40))
            with model.no_sync() if k + 1 < accum else nullcontext():
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), (x % 9).flatten()) / accum
                loss.backward()
        opt.step()
        if rank == 0 and step % 60 == 0:
            print(step, loss.item() * accum)
    dist.barrier()
    time.sleep(0.5)  # let the gloo threads finish before they are torn down
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
