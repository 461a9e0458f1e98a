"""Lightning as its documentation shows it: the last checkpoint after every epoch, and ckpt_path="last"."""

import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

torch.set_num_threads(1)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 4000), torch.nn.Tanh(), torch.nn.Linear(4000, 1))

    def training_step(self, batch, _):
        time.sleep(0.03)
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        time.sleep(0.03)
        self.log("validation_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.001)


lightning.seed_everything(0)
features = torch.randn(128, 32)
data = torch.utils.data.TensorDataset(features, features[:, :4].sum(1, keepdim=True))
trainer = lightning.Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint("out", save_last=True)],
)
trainer.fit(
    Regression(),
    torch.utils.data.DataLoader(data, batch_size=16),
    torch.utils.data.DataLoader(data, batch_size=32),
    ckpt_path="last",
)
