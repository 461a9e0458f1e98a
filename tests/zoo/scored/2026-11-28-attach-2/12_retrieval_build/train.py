"""Dense retrieval with BM25 negatives. The BM25 index is built in memory when the job begins."""
import argparse
import os
import signal
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from bm25 import BM25Index
from corpus import read_documents, write_corpus


class DualEncoder(nn.Module):
    def __init__(self, vocab, dim=64):
        super().__init__()
        self.q = nn.EmbeddingBag(vocab, dim)
        self.d = nn.EmbeddingBag(vocab, dim)

    def forward(self, q, d):
        return self.q(q) @ self.d(d).T


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--docs", type=int, default=340000)
    p.add_argument("--vocab", type=int, default=20000)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--passes", type=int, default=14)
    args = p.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory(dir=here) as tmp:
        path = os.path.join(tmp, f"docs_{rank}.txt")
        write_corpus(path, args.docs // world // args.passes, args.vocab, seed=rank)
        if rank == 0:
            print("\nREADY\n", end="", flush=True)
        index = BM25Index()
        for n in range(args.passes):
            for doc_id, words in read_documents(path, shift=n):
                index.add((n, doc_id), words)
            print(f"[rank {rank}] indexed part {n + 1}/{args.passes}", flush=True)
        index.finish()
        dist.barrier()
        net = DualEncoder(args.vocab)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        step = 0
        for doc_id, words in read_documents(path, shift=0):
            hard = index.search(words[:4], top=args.batch - 1)
            docs = [words] + [index.docs[h] for h in hard]
            width = min(len(d) for d in docs)
            d = torch.tensor([w[:width] for w in docs])
            q = torch.tensor([words[:4]])
            loss = nn.functional.cross_entropy(net(q, d), torch.zeros(1, dtype=torch.long))
            opt.zero_grad()
            loss.backward()
            for t in net.parameters():
                dist.all_reduce(t.grad)
            opt.step()
            step += 1
            if rank == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
