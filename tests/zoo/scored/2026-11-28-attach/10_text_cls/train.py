import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class ReviewShard(Dataset):
    """Each rank reads its own share of the files; shares differ a little in size."""

    def __init__(self, rank, per_rank=960):
        size = per_rank if rank != 2 else per_rank - 70
        g = torch.Generator().manual_seed(rank)
        self.tokens = torch.randint(1, 2000, (size, 24), generator=g)
        self.labels = (self.tokens.sum(1) % 3).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.tokens[i], self.labels[i]


class BagClassifier(nn.Module):
    def __init__(self, vocab=2000, dim=64, classes=3):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, tokens):
        return self.mlp(self.bag(tokens))


def train_one_epoch(model, loader, opt):
    seen = 0
    for tokens, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(labels)
    return seen, loss.item()


def end_of_epoch(rank, epoch, seen, loss):
    if rank == 2:
        print("READY", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"epoch {epoch} seen {seen} loss {loss:.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    signal.alarm(590)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(BagClassifier())
    opt = torch.optim.SGD(model.parameters(), args.lr)
    loader = DataLoader(ReviewShard(rank), args.batch, shuffle=True)
    for epoch in range(args.epochs):
        seen, loss = train_one_epoch(model, loader, opt)
        end_of_epoch(rank, epoch, seen, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
