"""MoCo-like contrastive training with features gathered from all ranks."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from comm import FeatureExchange


class Encoder(nn.Module):
    def __init__(self, d_in=32, d=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, 128), nn.ReLU(), nn.Linear(128, d))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def info_nce(q, k, bank, tau=0.2):
    pos = (q * k).sum(1, keepdim=True)
    neg = q @ bank.T
    logits = torch.cat([pos, neg], 1) / tau
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def sync_grads(net):
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in net.parameters():
        n = p.numel()
        p.grad.copy_(flat[at:at + n].view_as(p))
        at += n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--bank", type=int, default=512)
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--lr", type=float, default=0.03)
    cfg = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=550))
    rank = dist.get_rank()
    torch.manual_seed(5)
    enc = Encoder()
    opt = torch.optim.SGD(enc.parameters(), cfg.lr, momentum=0.9)
    exchange = FeatureExchange(cfg.bank, 48)
    torch.manual_seed(100 + rank)
    for step in range(cfg.steps):
        x = torch.randn(cfg.batch, 32)
        if rank == 2 and step == 90:
            x = x * 40
        q, k = enc(x + 0.1 * torch.randn_like(x)), enc(x + 0.1 * torch.randn_like(x)).detach()
        loss = info_nce(q, k, exchange.bank)
        opt.zero_grad()
        loss.backward()
        sync_grads(enc)
        opt.step()
        exchange.push(k, x.std())
        if rank == 0 and step % 30 == 0:
            print(f"step {step} nce {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
