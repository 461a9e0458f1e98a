import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, codes=256, dim=48, stages=4):
        super().__init__()
        self.books = nn.ParameterList([nn.Parameter(0.1 * torch.randn(codes, dim)) for _ in range(stages)])

    def forward(self, z):
        flat = z.transpose(1, 2).reshape(-1, z.shape[1])
        rest, out, commit = flat, torch.zeros_like(flat), 0.0
        for book in self.books:
            pick = torch.cdist(rest.detach(), book.detach()).argmin(1)
            q = book[pick]
            commit = commit + (rest - q).pow(2).mean()
            out = out + q
            rest = rest - q.detach()
        out = flat + (out - flat).detach()
        return out.view(z.shape[0], -1, z.shape[1]).transpose(1, 2), commit


class Codec(nn.Module):
    def __init__(self, c=24, dim=48):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(1, c, 7, 2, 3), nn.ELU(),
            nn.Conv1d(c, 2 * c, 7, 4, 3), nn.ELU(),
            nn.Conv1d(2 * c, dim, 7, 4, 3),
        )
        self.vq = Quantizer(dim=dim)
        self.dec = nn.Sequential(
            nn.ConvTranspose1d(dim, 2 * c, 8, 4, 2), nn.ELU(),
            nn.ConvTranspose1d(2 * c, c, 8, 4, 2), nn.ELU(),
            nn.ConvTranspose1d(c, 1, 4, 2, 1),
        )

    def forward(self, x):
        z, commit = self.vq(self.enc(x))
        return self.dec(z)[..., :x.shape[-1]], commit
