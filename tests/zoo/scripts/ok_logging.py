"""Regression with a line in the log every 20 steps."""

import argparse
import logging
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(16384, 256)
    y = x[:, :16].pow(2).sum(1, keepdim=True)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 256, drop_last=True))
    model = nn.Sequential(nn.Linear(256, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    with tempfile.TemporaryDirectory() as folder:
        logging.basicConfig(filename=Path(folder, "train.log"), level=logging.INFO)
        log = logging.getLogger("train")
        total, step = torch.zeros(()), 0
        while step < args.steps:
            for a, b in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(a), b)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                schedule.step()
                total += loss.detach()
                step += 1
                if step % 20 == 0:
                    log.info("step %d loss %.4f norm %.3f lr %.2e", step, total / 20, norm, schedule.get_last_lr()[0])
                    total.zero_()
                if step >= args.steps:
                    break
        logging.shutdown()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
