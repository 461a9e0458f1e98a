"""DCGAN on synthetic 32x32 glyphs."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--niter", type=int, default=140)
p.add_argument("--batchSize", type=int, default=64)
p.add_argument("--nz", type=int, default=64)
p.add_argument("--ngf", type=int, default=32)
p.add_argument("--ndf", type=int, default=32)
p.add_argument("--lr", type=float, default=2e-4)
p.add_argument("--beta1", type=float, default=0.5)
p.add_argument("--manualSeed", type=int, default=999)
opt = p.parse_args()

torch.manual_seed(opt.manualSeed)
torch.set_num_threads(2)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.GroupNorm(4, ndf * 2), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False), nn.GroupNorm(4, ndf * 4), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False))

    def forward(self, x):
        return self.main(x).view(-1)


def glyphs(n, seed):
    g = torch.Generator().manual_seed(seed)
    grid = torch.arange(32).float()
    cy, cx = 8 + 16 * torch.rand(2, n, 1, 1, generator=g)
    r = 3 + 6 * torch.rand(n, 1, 1, generator=g)
    d = ((grid.view(1, -1, 1) - cy) ** 2 + (grid.view(1, 1, -1) - cx) ** 2).sqrt()
    return (torch.exp(-(d - r) ** 2) * 2 - 1).unsqueeze(1)


real_images = glyphs(4096, opt.manualSeed)
netG, netD = Generator(opt.nz, opt.ngf), Discriminator(opt.ndf)
optimizerD = torch.optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999), fused=True)
optimizerG = torch.optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999), fused=True)
ones, zeros = torch.ones(opt.batchSize), torch.zeros(opt.batchSize)

start = time.time()
for it in range(1, opt.niter + 1):
    real = real_images[torch.randint(0, len(real_images), (opt.batchSize,))]
    noise = torch.randn(opt.batchSize, opt.nz, 1, 1)

    # update D: maximize log(D(x)) + log(1 - D(G(z)))
    netD.zero_grad()
    fake = netG(noise)
    errD_real = F.binary_cross_entropy_with_logits(netD(real), ones)
    errD_fake = F.binary_cross_entropy_with_logits(netD(fake.detach()), zeros)
    errD = errD_real + errD_fake
    errD.backward()
    optimizerD.step()

    # update G: maximize log(D(G(z)))
    netG.zero_grad()
    netD.requires_grad_(False)
    errG = F.binary_cross_entropy_with_logits(netD(fake), ones)
    errG.backward()
    netD.requires_grad_(True)
    optimizerG.step()

    if it % 70 == 0:
        print(f"[{it}/{opt.niter}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f} {time.time() - start:.1f}s", flush=True)
