"""Data-parallel deep residual network for house-price style regression."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data as tud
from torch.nn.parallel import DistributedDataParallel

HP = {
    "features": 40, "width": 32, "blocks": 120, "rows": 12000, "batch_size": 64,
    "epochs": 2, "lr": 5e-4, "seed": 13, "find_unused_parameters": False,
}


class GatedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.value = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.value(h) * torch.sigmoid(self.gate(h))


class DeepTabular(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.stem = nn.Linear(hp["features"], hp["width"])
        self.trunk = nn.Sequential(*[GatedBlock(hp["width"]) for _ in range(hp["blocks"])])
        self.head = nn.Linear(hp["width"], 1)

    def forward(self, x):
        return self.head(self.trunk(self.stem(x))).squeeze(1)


def get_data(hp):
    g = torch.Generator().manual_seed(hp["seed"])
    x = torch.randn(hp["rows"], hp["features"], generator=g)
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.1 * torch.randn(hp["rows"], generator=g)
    return x, y


def run(hp):
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(hp["seed"])
    x, y = get_data(hp)
    sampler = tud.DistributedSampler(range(len(x)), seed=hp["seed"], drop_last=True)
    model = DistributedDataParallel(
        DeepTabular(hp), find_unused_parameters=hp["find_unused_parameters"], gradient_as_bucket_view=True)
    opt = torch.optim.Adam(model.parameters(), lr=hp["lr"], fused=True)
    t0 = time.time()
    for epoch in range(hp["epochs"]):
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler))
        chunks = [c for c in order.split(hp["batch_size"]) if len(c) == hp["batch_size"]]
        total = torch.zeros(())
        for idx in chunks:
            loss = F.mse_loss(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        if rank == 0:
            print(f"epoch {epoch} mse {total.item() / len(chunks):.4f} ({time.time() - t0:.1f}s)", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(HP)
