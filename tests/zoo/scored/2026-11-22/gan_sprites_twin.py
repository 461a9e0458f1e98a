"""DCGAN on 32x32 sprites with a small hand-rolled summary writer."""
import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

opt = {
    "nz": 64, "ngf": 24, "ndf": 24, "batch": 32, "iters": 130,
    "lr_g": 2e-4, "lr_d": 2e-4, "beta1": 0.5, "seed": 999, "report": 20,
}


class SummaryWriter:
    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.file = open(os.path.join(folder, "events.jsonl"), "w")

    def scalar(self, tag, value, step):
        self.file.write(json.dumps({"tag": tag, "value": float(value), "step": step}) + "\n")

    def histogram(self, tag, values, step, bins=64):
        v = values.detach().flatten().float()
        lo, hi = v.min().item(), v.max().item()
        counts = torch.histc(v, bins, lo, hi if hi > lo else lo + 1e-6)
        q = torch.quantile(v[:200000], torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]))
        self.file.write(json.dumps({"tag": tag, "step": step, "lo": lo, "hi": hi,
                                    "counts": counts.tolist(), "q": q.tolist()}) + "\n")

    def flush(self):
        self.file.flush()
        os.fsync(self.file.fileno())


def sprites(n, g):
    """Left-right symmetric random sprites, smoothed and scaled to [-1, 1]."""
    half = torch.rand(n, 3, 8, 4, generator=g)
    body = torch.cat([half, half.flip(-1)], dim=-1)
    mask = (torch.rand(n, 1, 8, 4, generator=g) > 0.45).float()
    mask = torch.cat([mask, mask.flip(-1)], dim=-1)
    img = F.interpolate(body * mask, size=32, mode="nearest")
    return img * 2 - 1


class Generator(nn.Module):
    def __init__(self, nz, f):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, f * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(f * 4), nn.ReLU(True),
            nn.ConvTranspose2d(f * 4, f * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(f * 2), nn.ReLU(True),
            nn.ConvTranspose2d(f * 2, f, 4, 2, 1, bias=False), nn.BatchNorm2d(f), nn.ReLU(True),
            nn.ConvTranspose2d(f, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, f, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(f, f * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(f * 2), nn.LeakyReLU(0.2, True),
            nn.Conv2d(f * 2, f * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(f * 4), nn.LeakyReLU(0.2, True),
            nn.Conv2d(f * 4, 1, 4, 1, 0))

    def forward(self, x):
        return self.main(x).flatten()


def init_weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)


torch.manual_seed(opt["seed"])
rng = torch.Generator().manual_seed(opt["seed"])
data = sprites(4096, rng)
netG = Generator(opt["nz"], opt["ngf"])
netD = Discriminator(opt["ndf"])
netG.apply(init_weights)
netD.apply(init_weights)
optG = torch.optim.Adam(netG.parameters(), lr=opt["lr_g"], betas=(opt["beta1"], 0.999), fused=True)
optD = torch.optim.Adam(netD.parameters(), lr=opt["lr_d"], betas=(opt["beta1"], 0.999), fused=True)
writer = SummaryWriter(os.path.join(tempfile.gettempdir(), "gan_sprites"))
bce = F.binary_cross_entropy_with_logits
start = time.time()

for it in range(opt["iters"]):
    real = data[torch.randint(0, len(data), (opt["batch"],), generator=rng)]
    noise = torch.randn(opt["batch"], opt["nz"], 1, 1, generator=rng)
    fake = netG(noise)

    # discriminator
    optD.zero_grad()
    out_real, out_fake = netD(real), netD(fake.detach())
    lossD = bce(out_real, torch.full_like(out_real, 0.9)) + bce(out_fake, torch.zeros_like(out_fake))
    lossD.backward()
    optD.step()

    # generator
    netD.requires_grad_(False)
    optG.zero_grad()
    score = netD(fake)
    lossG = bce(score, torch.ones_like(score))
    lossG.backward()
    optG.step()
    netD.requires_grad_(True)

    writer.scalar("loss/d", lossD.item(), it)
    writer.scalar("loss/g", lossG.item(), it)
    if it % opt["report"] == 0:
        for prefix, net in (("G", netG), ("D", netD)):
            for name, p in net.named_parameters():
                writer.histogram(f"{prefix}/{name}", p, it)
                writer.histogram(f"{prefix}/{name}.grad", p.grad if p.grad is not None else p, it)
        writer.flush()
        print(f"[{it}/{opt['iters']}] D {lossD.item():.3f} G {lossG.item():.3f} "
              f"{time.time() - start:.1f}s", flush=True)
