# Sentiment of product reviews, character-level side features + GRU.
import argparse
import random
from collections import namedtuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

Review = namedtuple("Review", "tokens stars")
VOCAB, N_PROPS = 4000, 24
random.seed(7)
torch.manual_seed(7)

# properties of each vocabulary entry: length, is_upper, punctuation, ... (toy values)
PROPS = np.random.default_rng(7).random((VOCAB, N_PROPS), dtype=np.float32)
PROP_DICT = {w: [float(v) for v in PROPS[w]] for w in range(VOCAB)}


def make_corpus(n):
    corpus = []
    for _ in range(n):
        ln = random.randint(40, 64)
        stars = random.randint(0, 4)
        lo = stars * 600
        corpus.append(Review([random.randint(lo, lo + 1500) for _ in range(ln)], stars))
    return corpus


class Collator:
    """Pads a list of reviews and attaches word properties."""

    def __init__(self, n_props):
        self.n_props = n_props

    def __call__(self, batch):
        width = max(len(r.tokens) for r in batch)
        ids, feats, stars = [], [], []
        for r in batch:
            row, frow = [], []
            for pos in range(width):
                if pos < len(r.tokens):
                    tok = r.tokens[pos]
                    row.append(tok)
                    vec = []
                    for k in range(self.n_props):
                        vec.append(PROP_DICT[tok][k])
                    frow.append(vec + [0.0] * (N_PROPS - self.n_props))
                else:
                    row.append(0)
                    frow.append([0.0] * N_PROPS)
            ids.append(row)
            feats.append(frow)
            stars.append(r.stars)
        return torch.tensor(ids), torch.tensor(feats), torch.tensor(stars)


class ArrayCollator:
    """Same output, built with numpy lookups."""

    def __init__(self, n_props):
        self.table = PROPS.copy()
        self.table[:, n_props:] = 0.0

    def __call__(self, batch):
        width = max(len(r.tokens) for r in batch)
        ids = np.zeros((len(batch), width), dtype=np.int64)
        mask = np.zeros((len(batch), width, 1), dtype=np.float32)
        for i, r in enumerate(batch):
            ids[i, :len(r.tokens)] = r.tokens
            mask[i, :len(r.tokens)] = 1.0
        feats = self.table[ids] * mask
        return torch.from_numpy(ids), torch.from_numpy(feats), torch.tensor([r.stars for r in batch])


class ReviewModel(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 40, padding_idx=0)
        self.rnn = nn.GRU(64, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 5)

    def forward(self, ids, feats):
        h, _ = self.rnn(torch.cat([self.emb(ids), feats], -1))
        return self.out(h.max(1).values)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--level", type=int, default=2)
    p.add_argument("--fixed", action="store_true")
    p.add_argument("--steps", type=int, default=180)
    a = p.parse_args()

    n_props, bs = {1: (3, 16), 2: (12, 18), 3: (24, 96)}[a.level]
    coll = (ArrayCollator if a.fixed else Collator)(n_props)
    loader = DataLoader(make_corpus(1500), bs, shuffle=True, collate_fn=coll, drop_last=True)
    model = ReviewModel()
    optim = torch.optim.Adam(model.parameters(), 2e-3, fused=True)
    crit = nn.CrossEntropyLoss()
    it = 0
    while it < a.steps:
        for ids, feats, stars in loader:
            loss = crit(model(ids, feats), stars)
            optim.zero_grad()
            loss.backward()
            optim.step()
            it += 1
            if it >= a.steps:
                break
    print("final loss", float(loss.detach()))
