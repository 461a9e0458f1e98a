"""Two ranks, four micro-batches per step, gradients exchanged once."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=70)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    x = torch.randn(32768, 128)
    y = x[:, :9].sum(1, keepdim=True).tanh()
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(DistributedSampler(data), 320, drop_last=True))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step, micro = 0, 0
    while step < args.steps:
        for a, b in loader:
            micro += 1
            last = micro % 4 == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.mse_loss(model(a), b) / 4
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
