"""Patch transformer for traffic flow forecasting with Accelerate."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class PatchForecaster(nn.Module):
    def __init__(self, context, horizon, patch, dim, depth, heads):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(context // patch, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 3 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim * (context // patch), horizon)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-4
        tokens = self.embed(((x - mean) / std).unflatten(1, (-1, self.patch))) + self.pos
        return self.head(self.encoder(tokens).flatten(1)) * std + mean


def windows(n_sensors, length, context, horizon, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length, dtype=torch.float32)
    phase = torch.rand(n_sensors, 1, generator=g)
    rush = torch.sin(2 * torch.pi * (t / 288 + phase)) + 0.4 * torch.sin(2 * torch.pi * (t / 96 + 2 * phase))
    flow = rush * (1 + phase) + 0.15 * torch.randn(n_sensors, length, generator=g)
    w = flow.unfold(1, context + horizon, 12).reshape(-1, context + horizon)
    return TensorDataset(w[:, :context].contiguous(), w[:, context:].contiguous())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", type=int, default=288)
    parser.add_argument("--horizon", type=int, default=48)
    parser.add_argument("--batch_size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=99)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(args.seed)
    train = windows(32, 2800, args.context, args.horizon, args.seed)
    val = windows(6, 2000, args.context, args.horizon, args.seed + 1)
    train_dl = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_dl = DataLoader(val, batch_size=256)

    model = PatchForecaster(args.context, args.horizon, 12, 128, 3, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    total = args.epochs * len(train_dl)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=total)
    model, optimizer, train_dl, val_dl, scheduler = accelerator.prepare(model, optimizer, train_dl, val_dl, scheduler)
    accelerator.print(f"{len(train)} windows, {total} steps")

    for epoch in range(args.epochs):
        model.train()
        total_loss = torch.zeros((), device=accelerator.device)
        for x, y in train_dl:
            loss = nn.functional.l1_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total_loss += loss.detach()
        accelerator.print(f"epoch {epoch}: train mae {total_loss.item() / len(train_dl):.4f}")

    model.eval()
    with torch.inference_mode():
        errs = [(model(x) - y).abs().mean(1) for x, y in val_dl]
    accelerator.print(f"val mae {torch.cat(errs).mean().item():.4f}")


if __name__ == "__main__":
    main()
