"""Patch transformer for load forecasting, trained with Hugging Face accelerate."""
import argparse
import math
import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class LoadSeries(Dataset):
    """Windows over hourly consumption of several meters."""

    def __init__(self, meters, hours, context, horizon, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(hours)
        phase = torch.rand(meters, 1, generator=g) * 2 * math.pi
        daily = torch.sin(2 * math.pi * t / 24 + phase)
        weekly = 0.5 * torch.sin(2 * math.pi * t / 168 + phase / 2)
        self.values = daily + weekly + 0.2 * torch.randn(meters, hours, generator=g)
        self.context, self.horizon = context, horizon
        self.per_meter = (hours - context - horizon) // 24
        self.meters = meters

    def __len__(self):
        return self.meters * self.per_meter

    def __getitem__(self, i):
        m, k = divmod(i, self.per_meter)
        w = self.values[m, 24 * k: 24 * k + self.context + self.horizon]
        return w[: self.context], w[self.context:]


class PatchForecaster(nn.Module):
    def __init__(self, context, horizon, patch=24, dim=256, depth=4, heads=8):
        super().__init__()
        self.patch = patch
        n = context // patch
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.zeros(n, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(n * dim, horizon)

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        std = x.std(1, keepdim=True) + 1e-5
        h = ((x - mean) / std).unflatten(1, (-1, self.patch))
        h = self.encoder(self.embed(h) + self.pos)
        return self.head(h.flatten(1)) * std + mean


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--output_dir", default=None)
    p.add_argument("--max_train_steps", type=int, default=300)
    p.add_argument("--per_device_batch_size", type=int, default=8)
    p.add_argument("--learning_rate", type=float, default=3e-4)
    p.add_argument("--checkpointing_steps", type=int, default=4)
    p.add_argument("--checkpoints_total_limit", type=int, default=2)
    p.add_argument("--seed", type=int, default=21)
    return p.parse_args()


def train(args, folder):
    accelerator = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(
            project_dir=folder, automatic_checkpoint_naming=True, total_limit=args.checkpoints_total_limit
        ),
    )
    set_seed(args.seed)
    data = LoadSeries(meters=24, hours=24 * 260, context=336, horizon=48, seed=args.seed)
    loader = DataLoader(data, batch_size=args.per_device_batch_size, shuffle=True, drop_last=True)
    model = PatchForecaster(336, 48)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
        lr=args.learning_rate, fused=True,
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.learning_rate, total_steps=args.max_train_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step, running = 0, 0.0
    while step < args.max_train_steps:
        for context, target in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.l1_loss(model(context), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            step += 1
            running += loss.detach().item()
            if step % args.checkpointing_steps == 0:
                accelerator.save_state()
            if step % 20 == 0:
                accelerator.print(f"step {step}: mae {running / 20:.4f}")
                running = 0.0
            if step >= args.max_train_steps:
                break
    accelerator.end_training()


def main():
    args = parse_args()
    if args.output_dir:
        os.makedirs(args.output_dir, exist_ok=True)
        train(args, args.output_dir)
    else:
        with tempfile.TemporaryDirectory(prefix="forecast_") as folder:
            train(args, folder)


if __name__ == "__main__":
    main()
