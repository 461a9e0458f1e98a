"""Neural audio codec (residual VQ), large batches."""
import argparse
import signal
import time

import torch
import torch.nn as nn

from codec import Codec


def clip(batch, samples, g):
    t = torch.arange(samples) / 8000.0
    f = 80 + 600 * torch.rand(batch, 1, generator=g)
    x = torch.sin(6.283 * f * t) + 0.3 * torch.sin(12.566 * f * t)
    return (x + 0.02 * torch.randn(batch, samples, generator=g)).unsqueeze(1)


def spectral(x, y):
    loss = 0.0
    for n in (256, 512, 1024):
        w = torch.hann_window(n)
        a = torch.stft(x.squeeze(1), n, n // 4, window=w, return_complex=True).abs()
        b = torch.stft(y.squeeze(1), n, n // 4, window=w, return_complex=True).abs()
        loss = loss + (a - b).abs().mean()
    return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--samples", type=int, default=8000)
    ap.add_argument("--chunks", type=int, default=45)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    net = Codec()
    opt = torch.optim.AdamW(net.parameters(), 3e-4)
    step = 0
    while True:
        t0 = time.time()
        opt.zero_grad()
        total = 0.0
        for _ in range(args.chunks):
            x = clip(args.batch, args.samples, g)
            y, commit = net(x)
            loss = nn.functional.l1_loss(y, x) + 0.1 * spectral(x, y) + 0.25 * commit
            (loss / args.chunks).backward()
            total += loss.item() / args.chunks
        opt.step()
        step += 1
        print(f"step {step} loss {total:.4f} ({time.time() - t0:.1f} s)", flush=True)
        if step == 1:
            print("READY", flush=True)


if __name__ == "__main__":
    main()
