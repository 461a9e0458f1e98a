"""MLP with embeddings for tabular data; an EMA copy is kept for evaluation."""
import argparse
import signal

import torch
import torch.nn as nn

from ema import SharedEMA


class TabularNet(nn.Module):
    def __init__(self, cards, n_num, width=128):
        super().__init__()
        self.embs = nn.ModuleList(nn.Embedding(c, 8) for c in cards)
        self.body = nn.Sequential(
            nn.Linear(8 * len(cards) + n_num, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, cat, num):
        parts = [e(cat[:, i]) for i, e in enumerate(self.embs)]
        return self.body(torch.cat(parts + [num], dim=1))


def sample(cards, n_num, batch):
    cat = torch.stack([torch.randint(0, c, (batch,)) for c in cards], dim=1)
    num = torch.randn(batch, n_num)
    y = ((num[:, 0] + (cat[:, 0] % 2)) > 0.5).long()
    return cat, num, y


@torch.no_grad()
def evaluate(ema, net, cards, n_num):
    cat, num, y = sample(cards, n_num, 1024)
    with ema.applied_to(net):
        acc = (net(cat, num).argmax(1) == y).float().mean()
    return acc.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--iters", type=int, default=3000)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--patience", type=int, default=3)
    ap.add_argument("--limit", type=int, default=590)
    args = ap.parse_args()
    signal.alarm(args.limit)
    torch.set_num_threads(1)
    cards, n_num = [7, 13, 50, 4], 10
    net = TabularNet(cards, n_num)
    ema = SharedEMA(net, decay=0.99)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    best, bad = 0.0, 0
    for it in range(1, args.iters + 1):
        cat, num, y = sample(cards, n_num, args.batch)
        loss = nn.functional.cross_entropy(net(cat, num), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update(net)
        if it % 20 == 0:
            acc = evaluate(ema, net, cards, n_num)
            best, bad = (acc, 0) if acc > best + 0.05 else (best, bad + 1)
            print(f"iter {it} acc {acc:.3f}", flush=True)
            if bad >= args.patience:
                print("READY", flush=True)
                ema.restart(net)
                bad = 0


if __name__ == "__main__":
    main()
