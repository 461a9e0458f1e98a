"""Lightning: convolutional autoencoder for anomaly detection in vibration windows."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def vibration(n, length, g, anomalies=0.0):
    t = torch.linspace(0, 1, length)
    x = torch.zeros(n, 4, length)
    for c in range(4):
        f = 5 + 10 * torch.rand(n, 1, generator=g) + 8 * c
        x[:, c] = torch.sin(6.28 * f * t + 6.28 * torch.rand(n, 1, generator=g))
    bad = torch.rand(n, generator=g) < anomalies
    where = torch.randint(0, length - 32, (n,), generator=g)
    for i in torch.nonzero(bad).flatten().tolist():
        x[i, :, where[i]:where[i] + 32] += 2.0 * torch.randn(4, 32, generator=g)
    return x + 0.1 * torch.randn(x.shape, generator=g), bad.float()


class VibrationData(L.LightningDataModule):
    def __init__(self, n_train=3840, n_val=320, length=256, batch_size=32):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(0)
        h = self.hparams
        self.train_set = TensorDataset(*vibration(h.n_train, h.length, g))
        self.val_set = TensorDataset(*vibration(h.n_val, h.length, g, anomalies=0.1))

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=64)


class ConvAutoencoder(L.LightningModule):
    def __init__(self, width=48, latent=16, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        def down(i, o):
            return nn.Sequential(nn.Conv1d(i, o, 9, stride=2, padding=4), nn.BatchNorm1d(o), nn.GELU())
        def up(i, o):
            return nn.Sequential(nn.ConvTranspose1d(i, o, 8, stride=2, padding=3),
                                 nn.BatchNorm1d(o), nn.GELU())
        self.encoder = nn.Sequential(nn.Conv1d(4, width, 9, padding=4), down(width, width),
                                     down(width, 2 * width), down(2 * width, latent))
        self.decoder = nn.Sequential(up(latent, 2 * width), up(2 * width, width), up(width, width),
                                     nn.Conv1d(width, 4, 9, padding=4))

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        loss = F.mse_loss(self(x), x)
        self.log("train_loss", loss)
        if batch_idx % 20 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.4f}", flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, bad = batch
        err = (self(x) - x).pow(2).amax(dim=2).mean(dim=1)
        self.log("val_score_bad", (err * bad).sum() / bad.sum().clamp(min=1))
        self.log("val_score_good", (err * (1 - bad)).sum() / (1 - bad).sum().clamp(min=1))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)


def main():
    L.seed_everything(12, verbose=False)
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", val_check_interval=1.0,
                        logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(ConvAutoencoder(), VibrationData())
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
