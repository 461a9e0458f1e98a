"""Keyword spotting with a small 1-d/2-d CNN on log-mel features (LightningModule)."""
import math
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
SAMPLE_RATE = 8000


class SyntheticKeywords(Dataset):
    """Chirps standing in for words: each class has its own pair of glides."""

    def __init__(self, n, num_classes=10, seed=0, augment=True):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(num_classes, (n,), generator=g)
        t = torch.arange(SAMPLE_RATE) / SAMPLE_RATE
        self.waves = torch.empty(n, SAMPLE_RATE)
        for i, c in enumerate(self.labels.tolist()):
            f0 = 200 + 90 * c + 20 * torch.randn((), generator=g)
            f1 = 1500 - 70 * c + 30 * torch.randn((), generator=g)
            self.waves[i] = torch.sin(2 * math.pi * (f0 * t + 150 * t * t)) + 0.5 * torch.sin(2 * math.pi * f1 * t)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        x = self.waves[idx]
        if self.augment:
            x = torch.roll(x, int(torch.randint(-800, 800, ())))
            x = x * (0.7 + 0.6 * torch.rand(()))
        return x + 0.3 * torch.randn(x.shape), self.labels[idx]


class KeywordData(L.LightningDataModule):
    def __init__(self, batch_size=32, num_workers=2):
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers

    def setup(self, stage=None):
        self.train_set = SyntheticKeywords(192, seed=1)
        self.test_set = SyntheticKeywords(128, seed=2, augment=False)

    def train_dataloader(self):
        return DataLoader(
            self.train_set,
            batch_size=self.batch_size,
            shuffle=True,
            num_workers=self.num_workers,
            persistent_workers=True,
            drop_last=True,
        )

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=64)


def mel_matrix(n_mels, n_fft):
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    hz = 700 * (10 ** (torch.linspace(0, top, n_mels + 2) / 2595) - 1)
    freqs = torch.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class KeywordNet(L.LightningModule):
    def __init__(self, num_classes=10, width=40, n_fft=256, hop=80, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.register_buffer("mel", mel_matrix(40, n_fft))
        self.register_buffer("window", torch.hann_window(n_fft))
        layers, cin = [], 1
        for cout, stride in [(width, 2), (width, 1), (width * 2, 2), (width * 2, 1)]:
            layers += [nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
            cin = cout
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(cin, num_classes)

    def forward(self, wave):
        spec = torch.stft(wave, self.hparams.n_fft, self.hparams.hop, window=self.window, return_complex=True)
        feats = torch.log(self.mel @ spec.abs().square() + 1e-5)
        return self.head(self.body(feats[:, None]).mean((2, 3)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        if (self.current_epoch + 1) % 5 == 0:
            loss = self.trainer.callback_metrics["train_loss"].item()
            print(f"epoch {self.current_epoch + 1:3d}  train_loss {loss:.4f}", flush=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=self.trainer.max_epochs)
        return [opt], [sched]


if __name__ == "__main__":
    L.seed_everything(42)
    trainer = L.Trainer(
        max_epochs=30,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = KeywordData()
    trainer.fit(KeywordNet(), datamodule=data)
    trainer.test(trainer.model, datamodule=data)
