"""Two-rank training of a deep narrow network with many small operators."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Tower(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.scale = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(depth))
        self.shift = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for scale, shift in zip(self.scale, self.shift):
            x = (x * scale + shift).tanh() + x
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    depth = {1: 120, 2: 240, 3: 480}[args.level]
    x = torch.randn(4096, 32)
    y = x.abs().mean(1, keepdim=True)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), drop_last=True)
    model = DistributedDataParallel(Tower(depth, 32), find_unused_parameters=not args.fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, fused=True)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
