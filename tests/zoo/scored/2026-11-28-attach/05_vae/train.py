"""Small VAE trained on binary shards."""
import signal
import tempfile
from argparse import ArgumentParser

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from shards import ShardReader, write_shards


class VAE(nn.Module):
    def __init__(self, d=144, h=128, z=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=-1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def elbo(x, recon, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(recon, x, reduction="sum")
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    return (rec + kl) / x.size(0)


def limit_worker(_):
    signal.alarm(560)


def main(argv=None):
    ap = ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--workers", type=int, default=2)
    opts = ap.parse_args(argv)
    signal.alarm(580)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        paths = write_shards(root, n=60, rows=64, dim=144)
        loader = DataLoader(ShardReader(paths, 144), batch_size=None,
                            num_workers=opts.workers, worker_init_fn=limit_worker,
                            multiprocessing_context="fork")
        vae = VAE()
        opt = torch.optim.Adam(vae.parameters(), lr=opts.lr)
        for epoch in range(opts.epochs):
            for i, x in enumerate(loader):
                recon, mu, logvar = vae(x)
                loss = elbo(x, recon, mu, logvar)
                opt.zero_grad()
                loss.backward()
                opt.step()
                if i % 20 == 0:
                    print(f"epoch {epoch} shard {i} elbo {loss.item():.2f}", flush=True)


if __name__ == "__main__":
    main()
