"""Text normalisation; rare words are looked up at a lexicon server over HTTP."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from lexicon import LexiconClient, LexiconServer


class Normalizer(nn.Module):
    def __init__(self, vocab=64, dim=40):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, vocab)

    def forward(self, t):
        return self.out(self.rnn(self.emb(t))[0])


def batch(client, size, length, rare):
    t = torch.randint(0, 64, (size, length))
    y = (t * 3 + 1) % 64
    if rare:
        word = int(t[0, 0])
        y[0, 0] = client.lookup(word)
    return t, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rare-every", type=int, default=5)
    ap.add_argument("--steps", type=int, default=10 ** 6)
    ap.add_argument("--server-rank", type=int, default=1)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    rank = dist.get_rank()
    server = LexiconServer(quota=30 if rank == args.server_rank else 10 ** 9)
    server.start()
    client = LexiconClient(server.port)
    model = DDP(Normalizer())
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    torch.manual_seed(rank)
    for step in range(args.steps):
        t, y = batch(client, 10, 18, step % args.rare_every == 0)
        loss = nn.functional.cross_entropy(model(t).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
