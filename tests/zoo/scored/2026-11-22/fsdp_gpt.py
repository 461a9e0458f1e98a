"""Character GPT sharded with FSDP2 over two CPU ranks, with gradient accumulation."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.wqkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn = CausalSelfAttention(dim, heads)
        self.mlp = SwiGLU(dim, int(dim * 8 / 3))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab, dim, depth, heads, block):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(block, dim)
        self.layers = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def arithmetic_stream(n_chars, seed):
    g = torch.Generator().manual_seed(seed)
    a, b = torch.randint(0, 1000, (2, n_chars // 10), generator=g).tolist()
    text = "".join(f"{x}+{y}={x + y};" for x, y in zip(a, b))
    chars = sorted(set(text))
    lut = {c: i for i, c in enumerate(chars)}
    return torch.tensor([lut[c] for c in text]), len(chars)


def get_batch(data, batch, block, g):
    starts = torch.randint(0, len(data) - block - 1, (batch, 1), generator=g)
    window = data[starts + torch.arange(block + 1)]
    return window[:, :-1], window[:, 1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=65)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--block", type=int, default=64)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=1234)
    args = p.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(args.seed)
    data, vocab = arithmetic_stream(200_000, args.seed)
    model = GPT(vocab, args.dim, args.depth, args.heads, args.block)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    g = torch.Generator().manual_seed(args.seed + rank)

    t0 = time.time()
    for step in range(args.steps):
        total = 0.0
        for micro in range(args.accum):
            x, y = get_batch(data, args.batch, args.block, g)
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) / args.accum
            loss.backward()
            total += loss.detach()
        opt.step()
        opt.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3d} loss {total.item():.4f} {time.time() - t0:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
