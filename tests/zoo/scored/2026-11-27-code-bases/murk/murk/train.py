import time

import torch
import torch.nn.functional as F

from .blobs import Blobs
from .config import from_env
from .ema import Ema
from .runtime import prepare
from .schedule import CosineSchedule
from .unet import UNet


class DiffusionTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.data = Blobs(cfg.images, cfg.size, cfg.unet.classes, cfg.seed)
        self.schedule = CosineSchedule(cfg.timesteps)
        self.net = UNet(cfg.unet)
        self.ema = Ema(self.net, cfg.ema_decay)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr, fused=True)

    def loss(self, x, y):
        t = torch.randint(self.schedule.steps, (len(x),))
        y = torch.where(torch.rand(len(x)) < self.cfg.label_dropout, self.cfg.unet.classes, y)
        eps = torch.randn_like(x)
        out = self.net(self.schedule.diffuse(x, t, eps), t, y)
        return F.mse_loss(out, self.schedule.velocity(x, t, eps))

    def iteration(self):
        x, y = self.data.draw(self.cfg.batch)
        loss = self.loss(x, y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.ema.update()
        return loss

    def train(self):
        t0 = time.perf_counter()
        for i in range(1, self.cfg.iterations + 1):
            loss = self.iteration()
            if i % self.cfg.print_every == 0:
                ms = (time.perf_counter() - t0) / i * 1e3
                print(f"it {i}: v-loss {loss.item():.4f} ({ms:.1f} ms/it)", flush=True)


if __name__ == "__main__":
    config = from_env()
    prepare(config)
    DiffusionTrainer(config).train()
