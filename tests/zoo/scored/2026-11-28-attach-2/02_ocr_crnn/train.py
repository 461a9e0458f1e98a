"""CRNN for line images with CTC."""
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn


class LineRenderer:
    """Draws fake text lines in a thread pool; lines longer than wrap_above are drawn in halves."""

    def __init__(self, height, width, alphabet, threads):
        self.h, self.w, self.n = height, width, alphabet
        self.glyphs = torch.rand(alphabet + 1, height, 8)
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="render")
        self.wrap_above = 99
        self.rng = random.Random(5)

    def _draw(self, text):
        if len(text) > self.wrap_above:
            mid = len(text) // 2
            left = self.pool.submit(self._draw, text[:mid])
            right = self.pool.submit(self._draw, text[mid:])
            return torch.cat([left.result(), right.result()], dim=1)
        return torch.cat([self.glyphs[c] for c in text], dim=1)

    def _pad(self, img):
        out = torch.zeros(self.h, self.w)
        out[:, :img.shape[1]] = img[:, :self.w]
        return out

    def batch(self, size):
        texts = [[self.rng.randint(1, self.n) for _ in range(self.rng.randint(7, 11))]
                 for _ in range(size)]
        jobs = [self.pool.submit(self._draw, t) for t in texts]
        images = []
        for job in jobs:
            images.append(self._pad(job.result()))
        labels = torch.tensor([c for t in texts for c in t])
        return torch.stack(images)[:, None], labels, torch.tensor([len(t) for t in texts])


@dataclass
class Config:
    alphabet: int = 20
    height: int = 16
    width: int = 96
    batch: int = 6
    steps: int = 100000
    lr: float = 1e-3
    threads: int = 3
    long_lines_from: int = 40


class CRNN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU()
        )
        self.rnn = nn.GRU(24 * cfg.height // 4, 48, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(96, cfg.alphabet + 1)

    def forward(self, img):
        f = self.conv(img)
        f = f.permute(0, 3, 1, 2).flatten(2)
        return self.fc(self.rnn(f)[0]).log_softmax(-1)


def fit(cfg):
    net = CRNN(cfg)
    opt = torch.optim.Adam(net.parameters(), cfg.lr)
    ctc = nn.CTCLoss(zero_infinity=True)
    renderer = LineRenderer(cfg.height, cfg.width, cfg.alphabet, cfg.threads)
    for step in range(cfg.steps):
        if step == cfg.long_lines_from:
            renderer.wrap_above = 6
            print("READY", flush=True)
        images, labels, lengths = renderer.batch(cfg.batch)
        out = net(images).transpose(0, 1)
        ilen = torch.full((cfg.batch,), out.shape[0])
        loss = ctc(out, labels, ilen, lengths)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 10 == 0:
            print(f"[{step}] ctc {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(2)
    fit(Config())
