"""GPT on modular arithmetic, compiled once for a fixed shape."""
import math
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 100
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 192


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head = c.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd)
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd)
        self.c_out = nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.vocab_size, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.h = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.register_buffer("pos", torch.arange(c.block_size), persistent=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(self.pos)
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


batch_size, max_iters, warmup, base_lr = 16, 130, 10, 1e-3
torch.manual_seed(1234)
torch.set_num_threads(2)
cfg = GPTConfig()
model = GPT(cfg)
run = torch.compile(model, backend="aot_eager", dynamic=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=base_lr, betas=(0.9, 0.95), fused=True)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda i: (i + 1) / warmup if i < warmup else 0.5 * (1 + math.cos(math.pi * i / max_iters)))
span = torch.arange(cfg.block_size + 1)

t0 = time.time()
total = torch.zeros(())
for it in range(1, max_iters + 1):
    a, b = torch.randint(1, cfg.vocab_size, (2, batch_size, 1))
    seq = (a + b * span) % cfg.vocab_size
    loss = run(seq[:, :-1].contiguous(), seq[:, 1:].contiguous())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    total += loss.detach()
    if it % 65 == 0:
        print(f"iter {it} loss {total.item() / 65:.4f} {time.time() - t0:.1f}s", flush=True)
        total.zero_()
