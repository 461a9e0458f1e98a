"""nanoGPT-flavoured character model, data parallel with gradient accumulation."""
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size = 8
block_size = 64
gradient_accumulation_steps = 4  # over both processes
max_iters = 120
warmup_iters = 10
learning_rate = 1e-3
min_lr = 1e-4
grad_clip = 1.0
log_interval = 20


@dataclass
class GPTConfig:
    vocab_size: int = 96
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 192


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head = c.n_head
        self.ln1, self.ln2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.proj = nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=False)
        self.out = nn.Linear(4 * c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(att.transpose(1, 2).flatten(2))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(block_size, c.n_embd)
        self.h = nn.Sequential(*[Block(c) for _ in range(c.n_layer)])
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight
        logits = self.lm_head(self.ln_f(self.h(x)))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    frac = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * frac)) * (learning_rate - min_lr)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
local_accum = gradient_accumulation_steps // world
torch.manual_seed(1337)
text = torch.cumsum(torch.randint(0, 5, (400_000,)), 0) % 96
torch.manual_seed(1337 + rank)
offsets = torch.arange(block_size + 1)


def get_batch():
    ix = torch.randint(len(text) - block_size - 1, (batch_size, 1)) + offsets
    chunk = text[ix]
    return chunk[:, :-1], chunk[:, 1:]


model = DDP(GPT(GPTConfig()))
decay = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
    lr=learning_rate, betas=(0.9, 0.95), fused=True,
)
t0 = time.time()
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    for micro in range(local_accum):
        X, Y = get_batch()
        with nullcontext() if micro == local_accum - 1 else model.no_sync():
            loss = model(X, Y) / local_accum
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if rank == 0 and (it + 1) % log_interval == 0:
        dt, t0 = time.time() - t0, time.time()
        print(f"iter {it + 1}: loss {loss.item() * local_accum:.4f}, {dt * 1000 / log_interval:.1f}ms/iter", flush=True)
dist.destroy_process_group()
