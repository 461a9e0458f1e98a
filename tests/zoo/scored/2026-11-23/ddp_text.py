"""Byte-level language model, two ranks, gradient accumulation."""
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, LAYERS, SEQ = 256, 160, 3, 64
MICRO, ACCUM, UPDATES, LR = 8, 2, 100, 5e-4


class ByteLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(SEQ, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB)
        self.mask = nn.Transformer.generate_square_subsequent_mask(SEQ)

    def forward(self, ids):
        return self.head(self.body(self.tok(ids) + self.pos, mask=self.mask, is_causal=True))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(77)
    corpus = torch.randint(0, VOCAB, (5000,)).repeat(20)
    model = DDP(ByteLM(), gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    gen = torch.Generator().manual_seed(1000 + rank)
    window = torch.arange(SEQ + 1)
    start, running = time.time(), torch.zeros(())
    for update in range(1, UPDATES + 1):
        for micro in range(ACCUM):
            ids = corpus[torch.randint(0, len(corpus) - SEQ - 1, (MICRO, 1), generator=gen) + window]
            with contextlib.nullcontext() if micro == ACCUM - 1 else model.no_sync():
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / ACCUM
                loss.backward()
            running += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        opt.step()
        opt.zero_grad()
        if update % 50 == 0 and rank == 0:
            print(f"update {update} loss {running.item() / 50:.4f} {time.time() - start:.1f}s", flush=True)
            running.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
