"""Fingerprint-based property regression with Lightning."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def fingerprints(n, bits, seed):
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(n, bits, generator=g) < 0.05).float()
    w = torch.randn(bits, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x @ w / 5 + 0.05 * torch.randn(n, 3, generator=g))


def batched(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


class PropertyNet(L.LightningModule):
    def __init__(self, bits=1024, width=1024, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(bits, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mse", F.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-4, fused=True)


def main():
    L.seed_everything(12, verbose=False)
    torch.set_num_threads(2)
    train, val = fingerprints(12288, 1024, 1), fingerprints(512, 1024, 2)
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=5, check_val_every_n_epoch=5, num_sanity_val_steps=0,
                        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(PropertyNet(), batched(train, 384, True), batched(val, 256, False))
    print("val_mse", round(trainer.callback_metrics["val_mse"].item(), 4))


if __name__ == "__main__":
    main()
