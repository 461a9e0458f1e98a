"""Audio autoencoder fed by an asyncio producer."""
import argparse
import asyncio
import signal

import torch
import torch.nn as nn


class AudioAE(nn.Module):
    def __init__(self, n=512, code=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n, 128), nn.ELU(), nn.Linear(128, code))
        self.dec = nn.Sequential(nn.Linear(code, 128), nn.ELU(), nn.Linear(128, n))

    def forward(self, x):
        return self.dec(self.enc(x))


class ChunkFeed:
    """Double buffer: `refill` makes the next block while the current one is consumed."""

    def __init__(self, block, n):
        self.block, self.n = block, n
        self.data = None
        self.filled = asyncio.Event()
        self.wanted = asyncio.Event()
        self.served = 0

    async def refill(self, limit):
        while self.served < limit:
            await self.wanted.wait()
            self.wanted.clear()
            t = torch.linspace(0, 40, self.n)
            f = torch.rand(self.block, 1) * 3
            self.data = torch.sin(f * t) + 0.05 * torch.randn(self.block, self.n)
            self.served += 1
            self.filled.set()

    async def next_block(self):
        self.wanted.set()
        await self.filled.wait()
        self.filled.clear()
        return self.data


async def train(args):
    feed = ChunkFeed(args.block, 512)
    producer = asyncio.create_task(feed.refill(args.limit))
    net = AudioAE()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    step = 0
    while step < args.steps:
        if feed.served == args.limit:
            print("READY", flush=True)
        block = await feed.next_block()
        for x in block.split(args.batch):
            loss = (net(x) - x).abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        print(f"step {step} l1 {loss.item():.4f}", flush=True)
    await producer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--block", type=int, default=128)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--limit", type=int, default=20)
    args = ap.parse_args()
    signal.alarm(585)
    torch.set_num_threads(1)
    asyncio.run(train(args))


if __name__ == "__main__":
    main()
