"""Two-rank training of a small transformer over documents of mixed length (batches by length)."""
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class HParams:
    vocab: int = 500
    dim: int = 128
    depth: int = 3
    heads: int = 4
    docs: int = 1920
    batch: int = 8
    epochs: int = 1
    lr: float = 1e-3
    seed: int = 4


def make_documents(hp):
    g = torch.Generator().manual_seed(hp.seed)
    lengths = torch.randint(2, 21, (hp.docs,), generator=g) * 8
    trans = torch.randint(0, hp.vocab, (hp.vocab, 3), generator=g)
    docs = []
    for n in lengths.tolist():
        choice = torch.randint(0, 3, (n,), generator=g).tolist()
        tok, seq = int(torch.randint(0, hp.vocab, (1,), generator=g)), []
        for c in choice:
            seq.append(tok)
            tok = int(trans[tok, c])
        docs.append(torch.tensor(seq))
    return docs


def batch_by_length(docs, batch):
    order = sorted(range(len(docs)), key=lambda i: len(docs[i]))
    return [order[i:i + batch] for i in range(0, len(order) - batch + 1, batch)]


class LengthBatchSampler:
    """Yields batches of similar length to this rank; every rank gets as many."""

    def __init__(self, docs, batch, rank, world, seed):
        batches = batch_by_length(docs, batch)
        usable = len(batches) // world * world
        self.batches = batches[rank:usable:world]
        self.rank, self.seed, self.epoch = rank, seed, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        self.epoch += 1
        for i in torch.randperm(len(self.batches), generator=g).tolist():
            yield self.batches[i]


def collate(docs):
    width = max(len(d) for d in docs)
    ids = torch.zeros(len(docs), width, dtype=torch.long)
    target = torch.full((len(docs), width), -100)
    for row, d in enumerate(docs):
        ids[row, :len(d)] = d
        target[row, :len(d) - 1] = d[1:]
    return ids, target


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2)
                   for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class TinyLM(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.tok = nn.Embedding(hp.vocab, hp.dim)
        self.pos = nn.Embedding(256, hp.dim)
        self.layers = nn.ModuleList(Layer(hp.dim, hp.heads) for _ in range(hp.depth))
        self.head = nn.Linear(hp.dim, hp.vocab)

    def forward(self, ids, target):
        x = self.tok(ids) + self.pos.weight[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), target.flatten(), ignore_index=-100)


def main():
    hp = HParams()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(hp.seed)
    docs = make_documents(hp)
    sampler = LengthBatchSampler(docs, hp.batch, rank, world, hp.seed)
    model = DDP(TinyLM(hp))
    opt = torch.optim.AdamW(model.parameters(), lr=hp.lr, fused=True)
    tokens, start = 0, time.time()
    for epoch in range(hp.epochs):
        for step, rows in enumerate(sampler):
            ids, target = collate([docs[i] for i in rows])
            loss = model(ids, target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tokens += ids.numel()
            if rank == 0 and step % 20 == 0:
                print(f"epoch {epoch} step {step}/{len(sampler)} loss {loss.item():.3f} "
                      f"{time.time() - start:.1f}s", flush=True)
    total = torch.tensor([tokens])
    dist.all_reduce(total)
    if rank == 0:
        print(f"{total.item()} tokens in {time.time() - start:.1f}s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
