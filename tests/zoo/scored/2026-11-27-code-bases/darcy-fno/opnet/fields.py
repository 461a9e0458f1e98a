"""Random sources and the solution of  (-kappa * laplace + 1) u = tanh(f)  in Fourier space."""
import torch


def wave_numbers(n):
    k = torch.fft.fftfreq(n, 1.0 / n)
    return k[:, None] ** 2 + torch.fft.rfftfreq(n, 1.0 / n)[None] ** 2


def random_field(count, n, gen, alpha=2.5, tau=4.0):
    amp = (wave_numbers(n) + tau ** 2) ** (-alpha / 2)
    white = torch.fft.rfft2(torch.randn(count, n, n, generator=gen))
    f = torch.fft.irfft2(white * amp, s=(n, n))
    return f / f.std()


def solve(f, kappa=0.02):
    k2 = wave_numbers(f.shape[-1])
    return torch.fft.irfft2(torch.fft.rfft2(torch.tanh(2 * f)) / (1 + kappa * k2), s=f.shape[-2:])


class FieldStore:
    def __init__(self, s):
        self.gen = torch.Generator().manual_seed(s.seed)
        total = s.samples + s.held_out
        f = random_field(total, s.resolution, self.gen)
        u = solve(f)
        self.scale = u[:s.samples].std()
        f, u = f[:, None], (u / self.scale)[:, None]
        self.train = (f[:s.samples], u[:s.samples])
        self.test = (f[s.samples:], u[s.samples:])

    def shuffled(self, batch):
        f, u = self.train
        for idx in torch.randperm(len(f), generator=self.gen).split(batch):
            yield f[idx], u[idx]

    def held_out(self, batch):
        return zip(self.test[0].split(batch), self.test[1].split(batch))
