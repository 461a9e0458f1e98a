"""Surrogate of a 2D flow solver: multi-scale mixer, compiled."""
import argparse
import os
import signal
import tempfile
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def synthetic_flow(batch, size):
    k = torch.randn(batch, 2, 6, 1, 1)
    yy, xx = torch.meshgrid(torch.linspace(0, 6.28, size), torch.linspace(0, 6.28, size), indexing="ij")
    waves = torch.stack([torch.sin((i + 1) * xx + i * yy) for i in range(6)])
    field = (k * waves).sum(2)
    return field, field.roll(1, -1) * 0.95


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--depth", type=int, default=34)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cache = tempfile.TemporaryDirectory(dir=HERE, prefix="inductor_")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    from mixer import FlowMixer

    net = FlowMixer(depth=args.depth)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    fast = torch.compile(net)
    t0 = time.time()
    for step in range(10 ** 6):
        x, y = synthetic_flow(args.batch, args.size)
        if step == 0:
            print("READY", flush=True)
        loss = torch.nn.functional.mse_loss(fast(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} mse {loss.item():.4f} {time.time() - t0:.1f} s", flush=True)


if __name__ == "__main__":
    main()
