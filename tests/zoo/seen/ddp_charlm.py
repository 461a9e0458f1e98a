"""Character LM, data parallel on two processes, several micro-batches per update.

    torchrun --nproc-per-node 2 ddp_charlm.py
"""
import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class CharLM(nn.Module):
    def __init__(self, vocab, d, hidden):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=90)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(100)
    micro, vocab, d, hidden, bs = {1: (2, 1500, 64, 96, 12), 2: (3, 4000, 64, 96, 4), 3: (8, 10000, 48, 48, 1)}[args.level]
    net = DDP(CharLM(vocab, d, hidden))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    g = torch.Generator().manual_seed(200 + rank)
    text = torch.randint(0, vocab, (60_000,), generator=g)
    for step in range(args.steps):
        opt.zero_grad(set_to_none=True)
        for k in range(micro):
            at = torch.randint(0, len(text) - 25, (bs, 1), generator=g) + torch.arange(25)
            chunk = text[at]
            hold = net.no_sync() if args.fixed and k < micro - 1 else contextlib.nullcontext()
            with hold:
                logits = net(chunk[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten()) / micro
                loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(step, loss.item() * micro)
    dist.barrier()
    time.sleep(0.5)  # let the gloo threads finish before they are torn down
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
