"""Two-rank training of a residual MLP with a chosen gradient bucket size."""

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
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x):
        return x + 0.1 * self.b(F.relu(self.a(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    width, depth, batch = {1: (128, 16, 256), 2: (96, 24, 96), 3: (48, 48, 24)}[args.level]
    cap_mb = 25 if args.fixed else 0.001
    x = torch.randn(8192, width)
    y = x.sum(1, keepdim=True).sin()
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data), drop_last=True)
    net = nn.Sequential(*[Block(width) for _ in range(depth)], nn.Linear(width, 1))
    model = DistributedDataParallel(net, bucket_cap_mb=cap_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
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
