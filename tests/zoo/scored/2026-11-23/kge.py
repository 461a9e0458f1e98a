"""Knowledge graph embedding (RotatE-style scoring, self-adversarial negatives)."""
import argparse
import gc
import random
import time
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_graph(entities, relations, triples, seed):
    rng = random.Random(seed)
    heads, rels, tails = [], [], []
    for _ in range(triples):
        h, r = rng.randrange(entities), rng.randrange(relations)
        heads.append(h)
        rels.append(r)
        tails.append((h * 31 + r * 17 + rng.randrange(5)) % entities)
    return torch.tensor([heads, rels, tails]).t().contiguous()


def build_filter(triples):
    known = defaultdict(lambda: defaultdict(set))
    for h, r, t in triples.tolist():
        known[h][r].add(t)
    return known


class RotatE(nn.Module):
    def __init__(self, entities, relations, dim, gamma):
        super().__init__()
        self.gamma = gamma
        self.entity = nn.Embedding(entities, 2 * dim, sparse=True)
        self.phase = nn.Embedding(relations, dim, sparse=True)
        nn.init.uniform_(self.entity.weight, -0.1, 0.1)
        nn.init.uniform_(self.phase.weight, -3.14, 3.14)

    def forward(self, h, r, t):
        hr, hi = self.entity(h).unsqueeze(1).chunk(2, -1)
        phase = self.phase(r).unsqueeze(1)
        tr, ti = self.entity(t).chunk(2, -1)
        cos, sin = phase.cos(), phase.sin()
        dr = hr * cos - hi * sin - tr
        di = hr * sin + hi * cos - ti
        return self.gamma - (dr * dr + di * di + 1e-9).sqrt().sum(-1)


@torch.no_grad()
def filtered_rank(model, triples, known, entities):
    ranks = []
    for h, r, t in triples.tolist():
        scores = model(torch.tensor([h]), torch.tensor([r]), torch.arange(entities).unsqueeze(0))[0]
        target = scores[t].clone()
        scores[list(known[h][r])] = -1e9
        ranks.append((scores > target).sum().item() + 1)
    return sum(1.0 / x for x in ranks) / len(ranks)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--entities", type=int, default=20000)
    ap.add_argument("--relations", type=int, default=40)
    ap.add_argument("--triples", type=int, default=100000)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--negatives", type=int, default=64)
    ap.add_argument("--steps", type=int, default=140)
    ap.add_argument("--seed", type=int, default=5)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)

    triples = make_graph(a.entities, a.relations, a.triples, a.seed)
    known = build_filter(triples)
    model = RotatE(a.entities, a.relations, a.dim, gamma=9.0)
    opt = torch.optim.SparseAdam(list(model.parameters()), lr=2e-3)

    start = time.time()
    running = torch.zeros(())
    for step in range(1, a.steps + 1):
        pick = torch.randint(0, len(triples), (a.batch,))
        h, r, t = triples[pick].unbind(1)
        neg = torch.randint(0, a.entities, (a.batch, a.negatives))
        scores = model(h, r, torch.cat([t.unsqueeze(1), neg], 1))
        pos_score, neg_score = scores[:, 0], scores[:, 1:]
        weight = neg_score.detach().softmax(-1)
        loss = -(F.logsigmoid(pos_score) + (weight * F.logsigmoid(-neg_score)).sum(-1)).mean() / 2
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running += loss.detach()
        del scores, pos_score, neg_score, weight, loss
        if step % 10 == 0:
            gc.collect()
        if step % 35 == 0:
            print(f"step {step} loss {running.item() / 35:.4f} {time.time() - start:.1f}s", flush=True)
            running.zero_()
    mrr = filtered_rank(model, triples[:20], known, a.entities)
    print(f"filtered MRR {mrr:.3f}")


if __name__ == "__main__":
    main()
