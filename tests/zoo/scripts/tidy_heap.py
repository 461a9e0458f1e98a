"""Knowledge-graph embedding with the triples kept as Python objects."""

import argparse
import gc
import random

import torch
import torch.nn.functional as F
from torch import nn


class Triple:
    def __init__(self, head, relation, tail):
        self.head = head
        self.relation = relation
        self.tail = tail
        self.source = {"head": head, "tail": tail}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)

    clean_every = {1: 12, 2: 5, 3: 2}[args.level]
    triples = [Triple(rng.randrange(5000), rng.randrange(20), rng.randrange(5000)) for _ in range(20_000)]
    entity = nn.Embedding(5000, 128)
    relation = nn.Embedding(20, 128)
    score = nn.Sequential(nn.Linear(384, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
    parameters = [*entity.parameters(), *relation.parameters(), *score.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=0.01)
    for step in range(args.steps):
        batch = rng.sample(triples, 192)
        head = entity(torch.tensor([t.head for t in batch]))
        tail = entity(torch.tensor([t.tail for t in batch]))
        rel = relation(torch.tensor([t.relation for t in batch]))
        wrong = entity(torch.randint(0, 5000, (len(batch),)))
        good = score(torch.cat([head, rel, tail], 1))
        bad = score(torch.cat([head, rel, wrong], 1))
        loss = F.softplus(bad - good).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.fixed and step % clean_every == 0:
            gc.collect()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
