"""Session-based next item recommendation (self-attention), synchronous SGD on all ranks."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class AttentionBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class SessionModel(nn.Module):
    def __init__(self, n_items, dim, depth, heads, max_len):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.pos = nn.Parameter(torch.zeros(max_len, dim))
        self.blocks = nn.Sequential(*[AttentionBlock(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.items.weight, std=0.05)

    def forward(self, clicks):
        x = self.items(clicks) + self.pos
        return self.norm(self.blocks(x)) @ self.items.weight.t()


def synth_sessions(n, length, n_items, seed):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(n_items, (n, 1), generator=g)
    hops = torch.randint(1, 8, (n, length), generator=g)
    return (start + hops.cumsum(1)) % n_items


def broadcast_parameters(model):
    for p in model.parameters():
        dist.broadcast(p.data, src=0)


def average_gradients(model):
    world = float(dist.get_world_size())
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n-items", type=int, default=3000)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--max-len", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)

    sessions = synth_sessions(16384, args.max_len + 1, args.n_items, args.seed)[rank::world].contiguous()
    model = SessionModel(args.n_items, args.dim, args.depth, args.heads, args.max_len)
    broadcast_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)

    order = torch.randperm(len(sessions))
    t0, losses = time.time(), []
    for step in range(args.steps):
        lo = step * args.batch_size % (len(sessions) - args.batch_size)
        batch = sessions[order[lo:lo + args.batch_size]]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, args.n_items), batch[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        losses.append(loss.detach())
        if (step + 1) % 40 == 0:
            if rank == 0:
                print(f"[{step + 1}/{args.steps}] loss={torch.stack(losses).mean():.4f} ({time.time() - t0:.1f}s)", flush=True)
            losses.clear()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
