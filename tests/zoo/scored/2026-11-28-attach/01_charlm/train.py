"""Character-level GRU language model on synthetic text."""
import argparse
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

from corpus import ArchiveCorpus


class CharLM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def run_epoch(model, loader, opt, state, deadline):
    lossf = nn.CrossEntropyLoss()
    for x, y in loader:
        logits = model(x)
        loss = lossf(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        state["step"] += 1
        state["loss"] = loss.item()
        if state["step"] == 45:
            print("READY", flush=True)
        if time.time() > deadline:
            return False
    return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--minutes", type=float, default=8)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)

    corpus = ArchiveCorpus(n_docs=4000, cached=320, seq_len=48)
    loader = DataLoader(corpus, batch_size=args.batch_size, num_workers=args.workers,
                        multiprocessing_context="fork")
    model = CharLM(corpus.vocab, args.dim)
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    state = {"step": 0, "loss": 0.0}
    deadline = time.time() + 60 * args.minutes
    epoch = 0
    while run_epoch(model, loader, opt, state, deadline):
        epoch += 1
        print(f"epoch {epoch} loss {state['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
