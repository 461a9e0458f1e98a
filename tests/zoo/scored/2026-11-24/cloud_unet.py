"""Cloud mask segmentation on four-band satellite tiles, small U-Net."""
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CFG = {
    "seed": 17,
    "tiles": 1200,
    "size": 48,
    "bands": 4,
    "width": 12,
    "batch_size": 16,
    "epochs": 2,
    "lr": 2e-3,
    "num_threads": 4,
    "print_every": 25,
}


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, bands, width, levels=3):
        super().__init__()
        widths = [width * 2 ** i for i in range(levels)]
        self.down = nn.ModuleList()
        cin = bands
        for w in widths:
            self.down.append(double_conv(cin, w))
            cin = w
        self.up = nn.ModuleList()
        for w in reversed(widths[:-1]):
            self.up.append(nn.ModuleDict({"lift": nn.ConvTranspose2d(cin, w, 2, 2), "conv": double_conv(2 * w, w)}))
            cin = w
        self.head = nn.Conv2d(cin, 1, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for block, skip in zip(self.up, reversed(skips[:-1])):
            x = block["conv"](torch.cat([block["lift"](x), skip], 1))
        return self.head(x)


def make_tiles(cfg):
    g = torch.Generator().manual_seed(cfg["seed"])
    n, s = cfg["tiles"], cfg["size"]
    field = F.interpolate(torch.randn(n, 1, 6, 6, generator=g), size=(s, s), mode="bicubic")
    mask = (field > 0.4).float()
    ground = F.interpolate(torch.randn(n, cfg["bands"], 12, 12, generator=g), size=(s, s), mode="bilinear")
    tiles = ground * 0.5 + mask * 1.2 + 0.4 * torch.randn(n, cfg["bands"], s, s, generator=g)
    return TensorDataset(tiles, mask)


def dice_bce(logits, mask):
    p = logits.sigmoid()
    inter = (p * mask).sum((1, 2, 3))
    dice = 1 - (2 * inter + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean()


def main(cfg):
    random.seed(cfg["seed"])
    np.random.seed(cfg["seed"])
    torch.manual_seed(cfg["seed"])
    torch.set_num_threads(cfg["num_threads"])

    loader = DataLoader(make_tiles(cfg), batch_size=cfg["batch_size"], shuffle=True, drop_last=True)
    model = UNet(cfg["bands"], cfg["width"]).to(memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg["lr"], total_steps=cfg["epochs"] * len(loader))
    tic, step, run = time.time(), 0, torch.zeros(())
    for epoch in range(cfg["epochs"]):
        for tiles, mask in loader:
            tiles = tiles.contiguous(memory_format=torch.channels_last)
            loss = dice_bce(model(tiles), mask)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            run += loss.detach()
            step += 1
            if step % cfg["print_every"] == 0:
                print(f"[{epoch}] step {step} loss {run.item() / cfg['print_every']:.4f} {time.time() - tic:.1f}s", flush=True)
                run.zero_()
    model.eval()
    with torch.inference_mode():
        tiles, mask = loader.dataset[:64]
        print("pixel accuracy %.3f" % ((model(tiles) > 0) == mask.bool()).float().mean())


if __name__ == "__main__":
    main(CFG)
