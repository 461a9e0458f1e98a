"""
Character-level GPT on a generated arithmetic corpus. Settings can be overridden on the command line:
$ python chargpt.py --max_iters=100 --n_layer=2
"""
import sys
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
eval_interval = 10
eval_iters = 16
log_interval = 20
batch_size = 16
block_size = 96
n_layer = 3
n_head = 4
n_embd = 128
dropout = 0.0
learning_rate = 1e-3
max_iters = 160
grad_clip = 1.0
seed = 1337
for arg in sys.argv[1:]:
    key, val = arg.lstrip("-").split("=")
    assert key in globals(), f"unknown setting {key}"
    globals()[key] = type(globals()[key])(val)
# -----------------------------------------------------------------------------

torch.manual_seed(seed)


def corpus(n):
    g = torch.Generator().manual_seed(seed)
    a = torch.randint(0, 1000, (n,), generator=g).tolist()
    b = torch.randint(0, 1000, (n,), generator=g).tolist()
    return "".join(f"{x}+{y}={x + y}\n" for x, y in zip(a, b))


text = corpus(20000)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
cut = int(0.9 * len(ids))
splits = {"train": ids[:cut], "val": ids[cut:]}


def get_batch(split):
    data = splits[split]
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    window = data[ix[:, None] + torch.arange(block_size + 1)]
    return window[:, :-1], window[:, 1:]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (z.view(B, T, n_head, C // n_head).transpose(1, 2) for z in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if self.training else 0.0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    out = {}
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            losses[k] = model(*get_batch(split))
        out[split] = losses.mean().item()
    model.train()
    return out


model = GPT(len(chars))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
best_val = float("inf")
t0 = time.time()
for it in range(max_iters):
    if it > 0 and it % eval_interval == 0:
        losses = estimate_loss(model)
        best_val = min(best_val, losses["val"])
        print(f"step {it}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
    x, y = get_batch("train")
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    if it % log_interval == 0:
        print(f"iter {it}: loss {loss.item():.4f}, {(time.time() - t0) / (it + 1) * 1000:.0f} ms per iter")
final = estimate_loss(model)
print(f"done, final val loss {final['val']:.4f}")
