"""Electricity-load style forecasting with Lightning."""
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CONTEXT, HORIZON, SERIES = 96, 24, 24


def synthetic_load(length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float().unsqueeze(1)
    phase = torch.rand(SERIES, generator=g) * 2 * math.pi
    daily = torch.sin(2 * math.pi * t / 24 + phase)
    weekly = 0.5 * torch.sin(2 * math.pi * t / 168 + 2 * phase)
    return daily + weekly + 0.2 * torch.randn(length, SERIES, generator=g)


def windows(series, stride):
    w = series.unfold(0, CONTEXT + HORIZON, stride).transpose(1, 2)
    return TensorDataset(w[:, :CONTEXT].contiguous(), w[:, CONTEXT:].contiguous())


class LoadData(L.LightningDataModule):
    def __init__(self, batch_size=48):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        series = synthetic_load(8000, seed=4)
        self.train_set = windows(series[:6900], 1)
        self.val_set = windows(series[6900:], 2)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size)


class Forecaster(L.LightningModule):
    def __init__(self, dim=96, layers=2, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.inp = nn.Linear(SERIES, dim)
        self.pos = nn.Parameter(torch.randn(CONTEXT, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, HORIZON * SERIES)

    def forward(self, x):
        h = self.body(self.inp(x) + self.pos).mean(1)
        return self.out(h).view(-1, HORIZON, SERIES)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.smooth_l1_loss(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.smooth_l1_loss(self(x), y), on_epoch=True, on_step=False)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(4, verbose=False)
    torch.set_num_threads(2)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=130,
        val_check_interval=10,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Forecaster(), datamodule=LoadData())
    print("val_loss", round(trainer.callback_metrics["val_loss"].item(), 4))


if __name__ == "__main__":
    main()
