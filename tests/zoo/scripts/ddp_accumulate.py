"""Two-rank data-parallel training with gradient accumulation."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    micro_batches, batch, width = {1: (2, 192, 768), 2: (4, 72, 768), 3: (8, 16, 768)}[args.level]
    x = torch.randn(16384, 256)
    y = x[:, :3].sum(1, keepdim=True).cos()
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data), drop_last=True)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step, micro = 0, 0
    while step < args.steps:
        for a, b in loader:
            micro += 1
            last = micro % micro_batches == 0
            hold = model.no_sync() if args.fixed and not last else contextlib.nullcontext()
            with hold:
                loss = F.mse_loss(model(a), b) / micro_batches
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step >= args.steps:
                    break
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
