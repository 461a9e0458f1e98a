import time

import torch

from .losses import LOSSES
from .networks import Critic, Generator
from .pool import FakePool


class GanTrainer:
    def __init__(self, s, data):
        self.s = s
        self.data = data
        self.G = Generator(s.latent, s.width)
        self.D = Critic(s.width)
        self.opt_g = torch.optim.Adam(self.G.parameters(), s.lr_g, betas=(0.5, 0.999), fused=True)
        self.opt_d = torch.optim.Adam(self.D.parameters(), s.lr_d, betas=(0.5, 0.999), fused=True)
        self.pool = FakePool(s.pool_share, s.pool_limit)
        self.listeners = []

    def update_critic(self, real, fakes):
        self.opt_d.zero_grad()
        d_loss = LOSSES["critic"](self.D(real), self.D(self.pool.mix(fakes)))
        d_loss.backward()
        self.opt_d.step()
        return d_loss.detach()

    def update_generator(self, fakes):
        self.opt_g.zero_grad()
        self.D.requires_grad_(False)
        g_loss = LOSSES["generator"](self.D(fakes))
        g_loss.backward()
        self.D.requires_grad_(True)
        self.opt_g.step()
        return g_loss.detach()

    def iteration(self):
        real = self.data.batch(self.s.batch)
        z = torch.randn(self.s.batch, self.s.latent)
        fakes = self.G(z)
        if self.s.shared_fakes:
            d_loss = self.update_critic(real, fakes.detach())
            g_loss = self.update_generator(fakes)
        else:
            d_loss = self.update_critic(real, fakes)
            g_loss = self.update_generator(self.G(z))
        return d_loss, g_loss

    def fit(self):
        t0 = time.perf_counter()
        for i in range(1, self.s.iterations + 1):
            losses = self.iteration()
            for fn in self.listeners:
                fn(self, i, losses)
        dt = time.perf_counter() - t0
        print(f"{self.s.iterations} iterations, {dt:.1f} s, {1000 * dt / self.s.iterations:.1f} ms each")
