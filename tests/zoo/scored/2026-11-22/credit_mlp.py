"""Wide tabular network (credit default style) with mixed-precision plumbing."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_table(rows, columns, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g)
    w1 = torch.randn(columns, 8, generator=g) / columns ** 0.5
    score = torch.tanh(x @ w1).sum(1) + 0.3 * torch.randn(rows, generator=g)
    return x, (score > 0).float()


class WideBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.fc(self.norm(x)))


class CreditNet(nn.Module):
    def __init__(self, columns, width, depth):
        super().__init__()
        self.inp = nn.Linear(columns, width)
        self.blocks = nn.ModuleList([WideBlock(width) for _ in range(depth)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x).squeeze(-1)


class Trainer:
    def __init__(self, model, args):
        self.model = model
        self.args = args
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=500)
        self.global_step = 0
        self.skipped = 0

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        logits = self.model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        if not all(torch.isfinite(p.grad).all() for p in self.model.parameters()):
            self.skipped += 1
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.global_step += 1
        return loss.detach()

    def fit(self, x, y):
        n = x.shape[0]
        for epoch in range(self.args.epochs):
            order = torch.randperm(n)
            running, count = 0.0, 0
            for i in range(0, n - self.args.batch_size + 1, self.args.batch_size):
                rows = order[i:i + self.args.batch_size]
                running += self.train_step(x[rows], y[rows])
                count += 1
            print(f"epoch {epoch}: loss {float(running) / count:.4f} (step {self.global_step}, skipped {self.skipped})",
                  flush=True)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        acc = ((model(x) > 0) == (y > 0.5)).float().mean().item()
    model.train()
    return acc


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rows", type=int, default=1200)
    p.add_argument("--columns", type=int, default=64)
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(args.seed)
    x, y = make_table(args.rows + 400, args.columns, args.seed)
    model = CreditNet(args.columns, args.width, args.depth)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    trainer = Trainer(model, args)
    trainer.fit(x[:args.rows], y[:args.rows])
    print(f"held-out accuracy {evaluate(model, x[args.rows:], y[args.rows:]):.3f}")


if __name__ == "__main__":
    main()
