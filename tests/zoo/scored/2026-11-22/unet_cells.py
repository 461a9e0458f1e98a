"""U-Net segmentation of synthetic cells with a resume-friendly trainer."""
import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def cells(n, size, g):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    mask = torch.zeros(n, size, size)
    for _ in range(6):
        cx, cy = torch.rand(2, n, 1, 1, generator=g) * 1.8 - 0.9
        r = torch.rand(n, 1, 1, generator=g) * 0.15 + 0.05
        mask = torch.maximum(mask, (((xx - cx) ** 2 + (yy - cy) ** 2) < r ** 2).float())
    img = 0.6 * mask + 0.4 * torch.randn(n, size, size, generator=g)
    return img.unsqueeze(1), mask.unsqueeze(1)


class Double(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.d1, self.d2, self.d3 = Double(1, w), Double(w, 4 * w), Double(4 * w, 16 * w)
        self.bottom = Double(16 * w, 32 * w)
        self.u3, self.u2, self.u1 = (Double(48 * w, 16 * w), Double(20 * w, 4 * w), Double(5 * w, w))
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        z = self.bottom(F.max_pool2d(c, 2))
        up = lambda t: F.interpolate(t, scale_factor=2, mode="nearest")
        z = self.u3(torch.cat([up(z), c], 1))
        z = self.u2(torch.cat([up(z), b], 1))
        return self.out(self.u1(torch.cat([up(z), a], 1)))


def dice_bce(logits, target):
    prob = logits.sigmoid()
    inter = (prob * target).sum((1, 2, 3))
    dice = 1 - (2 * inter + 1) / (prob.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(logits, target)


class Trainer:
    def __init__(self, model, args):
        self.model, self.args, self.step = model, args, 0
        self.opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 40, 0.7)
        self.folder = tempfile.mkdtemp(prefix="unet_cells_")
        self.history = []

    def save(self):
        path = os.path.join(self.folder, "last.pt")
        with open(path + ".tmp", "wb") as f:
            torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict(),
                        "sched": self.sched.state_dict(), "step": self.step,
                        "history": self.history}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".tmp", path)

    def train(self, x, y, g):
        t0 = time.time()
        while self.step < self.args.steps:
            rows = torch.randint(0, len(x), (self.args.batch,), generator=g)
            loss = dice_bce(self.model(x[rows]), y[rows])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            self.step += 1
            self.history.append(loss.item())
            if self.step % self.args.save_every == 0:
                self.save()
            if self.step % 20 == 0:
                recent = sum(self.history[-20:]) / 20
                print(f"step {self.step} loss {recent:.4f} {time.time() - t0:.1f}s", flush=True)

    def cleanup(self):
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))
        os.rmdir(self.folder)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--size", type=int, default=48)
    p.add_argument("--width", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--save-every", type=int, default=2)
    p.add_argument("--seed", type=int, default=10)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    x, y = cells(600, args.size, g)
    trainer = Trainer(UNet(args.width), args)
    trainer.train(x, y, g)
    trainer.cleanup()


if __name__ == "__main__":
    main()
