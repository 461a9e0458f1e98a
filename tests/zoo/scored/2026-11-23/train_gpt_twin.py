"""
Character-level GPT in one file.
Config values can be overridden: python train_gpt.py --max_iters=50
"""
import math
import os
import sys
import tempfile
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
out_dir = ""
eval_interval = 60
eval_iters = 4
log_interval = 20
checkpoint_interval = 60
batch_size = 6
block_size = 64
n_layer = 4
n_head = 4
n_embd = 288
learning_rate = 1e-3
max_iters = 120
warmup_iters = 10
min_lr = 1e-4
grad_clip = 1.0
seed = 1337
threads = 2
for arg in sys.argv[1:]:
    key, val = arg.lstrip("-").split("=")
    globals()[key] = type(globals()[key])(val)
# -----------------------------------------------------------------------------
torch.manual_seed(seed)
torch.set_num_threads(threads)

g = torch.Generator().manual_seed(seed)
vocab_size = 65
pattern = torch.randint(0, vocab_size, (997,), generator=g)
data = pattern.repeat(200)
noise = torch.rand(data.shape, generator=g) < 0.1
data = torch.where(noise, torch.randint(0, vocab_size, data.shape, generator=g), data)
train_data, val_data = data[:180000], data[180000:]
offsets = torch.arange(block_size)


def get_batch(split):
    src = train_data if split == "train" else val_data
    ix = torch.randint(len(src) - block_size - 1, (batch_size, 1)) + offsets
    return src[ix], src[ix + 1]


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).view(B, T, 3, n_head, C // n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(offsets)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
print(f"number of parameters: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M")


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {s: torch.stack([model(*get_batch(s)) for _ in range(eval_iters)]).mean().item() for s in ("train", "val")}
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / max(1, max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def save_checkpoint(path, it):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": it}
    with open(path + ".tmp", "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)


with tempfile.TemporaryDirectory() as tmp:
    ckpt_path = os.path.join(out_dir or tmp, "ckpt.pt")
    t0 = time.time()
    for iter_num in range(1, max_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num)
        X, Y = get_batch("train")
        loss = model(X, Y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if iter_num % checkpoint_interval == 0:
            save_checkpoint(ckpt_path, iter_num)
        if iter_num % log_interval == 0:
            print(f"iter {iter_num}: loss {loss.item():.4f}, elapsed {time.time() - t0:.1f}s", flush=True)
        if iter_num % eval_interval == 0:
            losses = estimate_loss()
            print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
