import torch
from torch import nn
import torch.nn.functional as F

from .registry import SCORERS
from . import scorers  # noqa: F401


class LinkPredictor(nn.Module):
    def __init__(self, opts):
        super().__init__()
        self.entity = nn.Embedding(opts.entities, opts.dim, sparse=opts.sparse_entities)
        self.relation = nn.Embedding(opts.relations, opts.dim)
        self.scorer = SCORERS.create(opts.scorer, opts.dim)
        nn.init.normal_(self.entity.weight, std=opts.dim ** -0.5)

    def forward(self, rows, neg):
        head, rel, tail = rows.unbind(1)
        n = len(rows)
        vectors = self.entity(torch.cat([head, tail, neg]))
        h, t, ng = vectors.split([n, n, len(neg)])
        query = self.scorer(h, self.relation(rel))
        pos = (query * t).sum(1, keepdim=True)
        logits = torch.cat([pos, query @ ng.t()], 1)
        return F.cross_entropy(logits, torch.zeros(n, dtype=torch.long))


def build_optimizers(model, opts):
    dense = [p for n, p in model.named_parameters() if n != "entity.weight"]
    out = [torch.optim.Adam(dense, lr=opts.lr, fused=True)]
    if opts.sparse_entities:
        out.append(torch.optim.SparseAdam([model.entity.weight], lr=opts.lr))
    else:
        out.append(torch.optim.Adam([model.entity.weight], lr=opts.lr, fused=True))
    return out
