"""Two ranks that average their gradients themselves after every backward."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.a = nn.Linear(width, 2 * width)
        self.b = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.b(F.silu(self.a(self.norm(x))))


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    width, depth, batch = {1: (96, 12, 256), 2: (96, 16, 96), 3: (64, 32, 16)}[args.level]
    x = torch.randn(8192, width)
    y = x.clamp(-1, 1).sum(1, keepdim=True)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data), drop_last=True)
    model = nn.Sequential(*[Block(width) for _ in range(depth)], nn.Linear(width, 1))
    if args.fixed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(a), b)
            loss.backward()
            if not args.fixed:
                average_gradients(model, dist.get_world_size())
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
