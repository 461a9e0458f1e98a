"""Cell segmentation with a small U-Net; configuration is a plain dictionary."""
import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

DEFAULTS = {
    "runtime": {"num_threads": 2, "seed": 2},
    "data": {"images": 320, "size": 64, "batch_size": 16},
    "model": {"channels": [16, 32, 64]},
    "optim": {"lr": 2e-3, "steps": 150},
    "log_interval": 75,
}


def conv_block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        c1, c2, c3 = channels
        self.d1, self.d2, self.mid = conv_block(1, c1), conv_block(c1, c2), conv_block(c2, c3)
        self.u2, self.u1 = conv_block(c3 + c2, c2), conv_block(c2 + c1, c1)
        self.out = nn.Conv2d(c1, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return self.out(a)


def make_cells(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    grid = torch.arange(size).float()
    masks = torch.zeros(n, size, size)
    for _ in range(6):
        cy, cx = torch.rand(2, n, 1, 1, generator=g) * size
        r = 3 + 6 * torch.rand(n, 1, 1, generator=g)
        masks = torch.maximum(masks, ((grid.view(1, -1, 1) - cy) ** 2 + (grid.view(1, 1, -1) - cx) ** 2 < r * r).float())
    images = masks + 0.6 * torch.randn(n, size, size, generator=g)
    return images.unsqueeze(1), masks.unsqueeze(1)


class SegTrainer:
    def __init__(self, config):
        self.cfg = config
        torch.set_num_threads(config["runtime"]["num_threads"])
        torch.manual_seed(config["runtime"]["seed"])
        self.images, self.masks = make_cells(config["data"]["images"], config["data"]["size"], config["runtime"]["seed"])
        self.model = UNet(config["model"]["channels"])
        self.opt = torch.optim.Adam(self.model.parameters(), lr=config["optim"]["lr"], fused=True)

    def batches(self):
        bs = self.cfg["data"]["batch_size"]
        while True:
            for idx in torch.randperm(len(self.images)).split(bs):
                yield self.images[idx], self.masks[idx]

    def fit(self):
        start, running = time.time(), torch.zeros(())
        every = self.cfg["log_interval"]
        for step, (x, y) in zip(range(1, self.cfg["optim"]["steps"] + 1), self.batches()):
            loss = F.binary_cross_entropy_with_logits(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            running += loss.detach()
            if step % every == 0:
                print(f"step {step} bce {running.item() / every:.4f} {time.time() - start:.1f}s", flush=True)
                running.zero_()


if __name__ == "__main__":
    SegTrainer(copy.deepcopy(DEFAULTS)).fit()
