"""Click-through-rate model: large hashed embeddings and a small tower (mixed precision)."""
import argparse

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, fields, rows, dim, hidden):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(fields))
        self.mlp = nn.Sequential(nn.Linear(fields * dim, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        for t in self.tables:
            nn.init.normal_(t.weight, std=0.01)

    def forward(self, cat):
        z = torch.cat([t(cat[:, i]) for i, t in enumerate(self.tables)], 1)
        return self.mlp(z).squeeze(1)


class CTRTrainer:
    def __init__(self, level, use_scaler):
        fields, rows, dim, hidden = 16, 20_000, 32, 128
        self.batch = 512
        self.check = level if use_scaler else 0
        self.fields, self.rows = fields, rows
        self.model = Tower(fields, rows, dim, hidden)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", enabled=use_scaler)
        self.bce = nn.BCEWithLogitsLoss()

        self.everything = list(self.model.parameters())
        self.tables = [t.weight for t in list(self.model.tables)[:4]]

    @staticmethod
    def grads_ok(params):
        return all(bool(torch.isfinite(p.grad).all()) for p in params)

    def step(self):
        cat = torch.randint(0, self.rows, (self.batch, self.fields))
        click = (cat[:, 0] % 7 == 0).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logit = self.model(cat)
            loss = self.bce(logit.float(), click)
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        if self.check >= 2:
            self.scaler.unscale_(self.opt)
            if not self.grads_ok(self.tables if self.check == 2 else self.everything):
                print("bad gradients, scale", self.scaler.get_scale())
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=160)
    args = ap.parse_args()
    torch.manual_seed(0)
    tr = CTRTrainer(args.level, use_scaler=not args.fixed)
    for i in range(args.steps):
        loss = tr.step()
        if i % 50 == 49:
            print(i + 1, loss.item())
