import lightning as L
import torch
import torch.nn.functional as F

from .unet import UNet


class TerrainModule(L.LightningModule):
    def __init__(self, exp):
        super().__init__()
        self.exp = exp
        self.net = UNet(3, exp.data.classes, exp.model.base, exp.model.depth)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        return F.cross_entropy(logits, y) + 0.5 * self.soft_dice(logits, y)

    @staticmethod
    def soft_dice(logits, y):
        p = logits.softmax(1)
        hit = p.gather(1, y[:, None]).squeeze(1).mean()
        return 1.0 - hit

    def configure_optimizers(self):
        o = self.exp.optim
        opt = torch.optim.AdamW(self.parameters(), lr=o.lr, weight_decay=o.weight_decay, fused=True)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.exp.trainer["max_steps"])
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}
