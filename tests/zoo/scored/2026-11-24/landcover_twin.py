#!/usr/bin/env python
# Land cover segmentation on synthetic multispectral patches.
import logging
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
log = logging.getLogger("landcover")

cfg = {
    "bands": 5,
    "classes": 4,
    "patch": 64,
    "train_patches": 960,
    "batch_size": 16,
    "epochs": 3,
    "base": 16,
    "lr": 1e-3,
    "log_every": 20,
    "seed": 3,
}


def synth_patches(n, c):
    gen = torch.Generator().manual_seed(c["seed"])
    coarse = torch.randn(n, c["classes"], 8, 8, generator=gen)
    logits = F.interpolate(coarse, size=c["patch"], mode="bicubic", align_corners=False)
    mask = logits.argmax(1)
    signature = torch.randn(c["classes"], c["bands"], generator=gen)
    img = signature[mask].permute(0, 3, 1, 2) + 0.8 * torch.randn(n, c["bands"], c["patch"], c["patch"], generator=gen)
    return img.contiguous(), mask


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.GroupNorm(4, o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False), nn.GroupNorm(4, o), nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, bands, classes, base):
        super().__init__()
        self.enc1 = DoubleConv(bands, base)
        self.enc2 = DoubleConv(base, base * 2)
        self.mid = DoubleConv(base * 2, base * 4)
        self.up2 = nn.ConvTranspose2d(base * 4, base * 2, 2, 2)
        self.dec2 = DoubleConv(base * 4, base * 2)
        self.up1 = nn.ConvTranspose2d(base * 2, base, 2, 2)
        self.dec1 = DoubleConv(base * 2, base)
        self.out = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        m = self.mid(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([self.up2(m), e2], 1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], 1))
        return self.out(d1)


def confusion(logits, mask, k):
    idx = mask.flatten() * k + logits.argmax(1).flatten()
    return torch.bincount(idx, minlength=k * k).view(k, k)


def mean_iou(cm):
    inter = cm.diag().float()
    return (inter / (cm.sum(0) + cm.sum(1) - inter).clamp(min=1)).mean().item()


class Trainer:
    def __init__(self, c):
        self.c = c
        torch.manual_seed(c["seed"])
        self.loader = DataLoader(TensorDataset(*synth_patches(c["train_patches"], c)),
                                 batch_size=c["batch_size"], shuffle=True, drop_last=True)
        self.model = UNet(c["bands"], c["classes"], c["base"])
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=c["lr"], fused=True)
        self.cm = torch.zeros(c["classes"], c["classes"], dtype=torch.long)

    def train_step(self, img, mask):
        self.opt.zero_grad(set_to_none=True)
        logits = self.model(img)
        loss = F.cross_entropy(logits, mask)
        loss.backward()
        self.opt.step()
        self.update_metrics(logits.detach(), mask)
        return loss.item()

    def update_metrics(self, logits, mask):
        self.cm += confusion(logits, mask, self.c["classes"])

    def fit(self):
        step = 0
        for epoch in range(self.c["epochs"]):
            self.cm.zero_()
            tic = time.time()
            for img, mask in self.loader:
                loss = self.train_step(img, mask)
                step += 1
                if step % self.c["log_every"] == 0:
                    log.info("step %d loss %.4f", step, loss)
            log.info("epoch %d mIoU %.3f (%.1fs)", epoch, mean_iou(self.cm), time.time() - tic)


if __name__ == "__main__":
    Trainer(cfg).fit()
