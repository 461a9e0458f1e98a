"""Prefix-tuned LM. The learning rate of each phase is published by the first rank."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from plan import PhasePlan


class PrefixLM(nn.Module):
    def __init__(self, vocab=80, dim=48, prefix=6):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.prefix = nn.Parameter(0.02 * torch.randn(prefix, dim))
        self.core = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, t):
        p = self.prefix.expand(len(t), -1, -1)
        h, _ = self.core(torch.cat([p, self.emb(t)], 1))
        return self.head(h[:, self.prefix.shape[0]:])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--phase-steps", type=int, default=30)
    ap.add_argument("--steps", type=int, default=10 ** 6)
    cfg = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = PrefixLM()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    plan = PhasePlan(rank, base=1e-3)
    torch.manual_seed(50 + rank)
    for step in range(cfg.steps):
        if step % cfg.phase_steps == 0:
            lr = plan.rate(step // cfg.phase_steps)
            for group in opt.param_groups:
                group["lr"] = lr
        t = torch.randint(0, 80, (12, 1)) + torch.arange(20)
        t %= 80
        loss = nn.functional.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad.div_(world)
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} ppl {loss.exp().item():.2f} lr {lr:.2e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
