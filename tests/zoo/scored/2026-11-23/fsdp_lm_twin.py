"""Small decoder LM with FSDP2 (fully_shard) and gradient accumulation."""
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class LMConfig:
    vocab: int = 256
    dim: int = 192
    layers: int = 3
    heads: int = 4
    seq: int = 48
    micro_batch: int = 4
    accumulate: int = 4
    updates: int = 90
    lr: float = 6e-4
    seed: int = 7


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.proj = nn.Linear(c.dim, c.dim, bias=False)
        self.up = nn.Linear(c.dim, 4 * c.dim, bias=False)
        self.down = nn.Linear(4 * c.dim, c.dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.dim)
        self.pos = nn.Embedding(c.seq, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    cfg = LMConfig()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(cfg.seed)
    motif = torch.randint(0, cfg.vocab, (2048,))
    model = LM(cfg)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    gen = torch.Generator().manual_seed(cfg.seed + rank)
    span = torch.arange(cfg.seq + 1)

    start = time.time()
    running = torch.zeros(())
    for update in range(1, cfg.updates + 1):
        for micro in range(cfg.accumulate):
            last = micro == cfg.accumulate - 1
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            at = torch.randint(0, len(motif) - cfg.seq - 1, (cfg.micro_batch, 1), generator=gen)
            ids = motif[at + span]
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / cfg.accumulate
            loss.backward()
            running += loss.detach()
        opt.step()
        opt.zero_grad()
        if update % 45 == 0 and rank == 0:
            print(f"update {update} loss {running.item() / 45:.4f} {time.time() - start:.1f}s", flush=True)
            running.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
