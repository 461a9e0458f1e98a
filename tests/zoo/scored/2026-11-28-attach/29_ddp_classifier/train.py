import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class PatchClassifier(nn.Module):
    def __init__(self, dim=96, depth=2, classes=20):
        super().__init__()
        self.embed = nn.Linear(48, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        return self.fc(self.enc(self.embed(x)).mean(1))


class Validator:
    def __init__(self, batches, batch=32, seed=7):
        self.batches, self.batch, self.seed = batches, batch, seed

    @torch.no_grad()
    def __call__(self, net):
        g = torch.Generator().manual_seed(self.seed)
        net.eval()
        hits = total = 0
        for _ in range(self.batches):
            x = torch.randn(self.batch, 64, 48, generator=g)
            y = torch.randint(0, 20, (self.batch,), generator=g)
            views = [net(x.roll(s, 1)) for s in range(4)]
            hits += (torch.stack(views).mean(0).argmax(1) == y).sum().item()
            total += self.batch
        net.train()
        return hits / total


def train_steps(model, opt, n):
    for _ in range(n):
        x, y = torch.randn(8, 64, 48), torch.randint(0, 20, (8,))
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--steps-per-round", type=int, default=40)
    ap.add_argument("--val-batches", type=int, default=2000)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(PatchClassifier())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    validate = Validator(args.val_batches)
    begin = time.time()
    for r in range(args.rounds):
        loss = train_steps(model, opt, args.steps_per_round)
        if rank == 0:
            if r == 0:
                print("READY", flush=True)
            acc = validate(model.module)
            print(f"round {r} loss {loss:.3f} acc {acc:.3f} {time.time() - begin:.0f}s", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
