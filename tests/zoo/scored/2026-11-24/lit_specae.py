"""Convolutional autoencoder on machine-sound spectrograms (anomaly scores), Lightning."""
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class SpectrogramData(L.LightningDataModule):
    def __init__(self, n=2720, bins=64, frames=48, batch_size=32):
        super().__init__()
        self.n, self.bins, self.frames, self.batch_size = n, bins, frames, batch_size

    def setup(self, stage):
        if hasattr(self, "train"):
            return
        g = torch.Generator().manual_seed(0)
        f = torch.linspace(0, 1, self.bins).view(1, -1, 1)
        t = torch.linspace(0, 1, self.frames).view(1, 1, -1)
        spec = 0.1 * torch.randn(self.n, self.bins, self.frames, generator=g)
        base = 0.05 + 0.15 * torch.rand(self.n, 1, 1, generator=g)
        for k in range(1, 5):
            wobble = 0.02 * torch.sin(2 * torch.pi * (2 * t + torch.rand(self.n, 1, 1, generator=g)))
            spec += torch.exp(-(((f - k * base - wobble) / 0.02) ** 2)) / k
        self.train, self.val = random_split(TensorDataset(spec.unsqueeze(1)), [self.n - 160, 160], g)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=80)


class SpecAE(L.LightningModule):
    def __init__(self, width=32, latent=64, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        w = width
        self.encoder = nn.Sequential(
            nn.Conv2d(1, w, 5, 2, 2), nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * w, 4 * w, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(4 * w * 8 * 6, latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, 4 * w * 8 * 6), nn.Unflatten(1, (4 * w, 8, 6)), nn.ReLU(),
            nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(w, 1, 4, 2, 1),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, _):
        (x,) = batch
        loss = F.mse_loss(self(x), x)
        self.log("train/mse", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        (x,) = batch
        score = (self(x) - x).pow(2).mean((1, 2, 3))
        self.log("val/score", score.mean(), batch_size=len(x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, fused=True)


def main():
    L.seed_everything(8)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(SpecAE(), datamodule=SpectrogramData())
    print({k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
