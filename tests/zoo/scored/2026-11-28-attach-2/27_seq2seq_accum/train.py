"""Seq2seq with a very large effective batch: many micro batches between two optimiser steps."""
import contextlib
import signal
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Cfg:
    vocab: int = 60
    dim: int = 96
    length: int = 20
    micro: int = 16
    accumulate: int = 260
    lr: float = 2e-3


class Seq2Seq(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.tf = nn.Transformer(cfg.dim, 4, 1, 1, 2 * cfg.dim, dropout=0.0, batch_first=True)
        self.out = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return self.out(self.tf(self.emb(src), self.emb(tgt), tgt_mask=mask))


def micro_step(model, cfg, g):
    src = torch.randint(1, cfg.vocab, (cfg.micro, cfg.length), generator=g)
    tgt = src.flip(1)
    logits = model(src, torch.cat([torch.zeros_like(tgt[:, :1]), tgt[:, :-1]], 1))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tgt.flatten())
    (loss / cfg.accumulate).backward()
    return loss.item()


def main():
    cfg = Cfg()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(Seq2Seq(cfg))
    opt = torch.optim.Adam(model.parameters(), cfg.lr)
    g = torch.Generator().manual_seed(rank)
    step = 0
    while True:
        t0, total = time.time(), 0.0
        opt.zero_grad()
        for m in range(cfg.accumulate):
            last = m == cfg.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                total += micro_step(model, cfg, g)
        opt.step()
        step += 1
        if rank == 0:
            print(f"step {step} loss {total / cfg.accumulate:.3f} in {time.time() - t0:.1f} s", flush=True)
            if step == 1:
                print("\nREADY\n", end="", flush=True)


if __name__ == "__main__":
    main()
