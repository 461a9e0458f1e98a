"""Feature-token transformer for tabular regression: DDP, accumulation over two micro batches."""
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

SETTINGS = {
    "rows": 16384, "numeric": 16, "categorical": 8, "cardinality": 12,
    "dim": 96, "depth": 2, "heads": 4, "micro_batch": 32, "accumulate": 2,
    "updates": 220, "lr": 1e-3, "seed": 55,
}


def table(cfg):
    g = torch.Generator().manual_seed(cfg["seed"])
    num = torch.randn(cfg["rows"], cfg["numeric"], generator=g)
    cat = torch.randint(0, cfg["cardinality"], (cfg["rows"], cfg["categorical"]), generator=g)
    effect = torch.randn(cfg["categorical"], cfg["cardinality"], generator=g)
    y = num[:, 0] * num[:, 1] + num[:, 2].abs() + effect[torch.arange(cfg["categorical"]), cat].sum(1)
    return num, cat, (y - y.mean()) / y.std()


class FeatureTokens(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg["dim"]
        self.weight = nn.Parameter(torch.randn(cfg["numeric"], d) * 0.1)
        self.bias = nn.Parameter(torch.zeros(cfg["numeric"], d))
        self.table = nn.Embedding(cfg["categorical"] * cfg["cardinality"], d)
        self.register_buffer("offset", torch.arange(cfg["categorical"]) * cfg["cardinality"])
        self.cls = nn.Parameter(torch.zeros(1, 1, d))

    def forward(self, num, cat):
        a = num.unsqueeze(-1) * self.weight + self.bias
        b = self.table(cat + self.offset)
        return torch.cat([self.cls.expand(len(num), -1, -1), a, b], dim=1)


class FTTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = FeatureTokens(cfg)
        layer = nn.TransformerEncoderLayer(cfg["dim"], cfg["heads"], 3 * cfg["dim"], dropout=0.0,
                                           activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, cfg["depth"], enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(cfg["dim"]), nn.Linear(cfg["dim"], 1))

    def forward(self, num, cat):
        return self.head(self.encoder(self.tokens(num, cat))[:, 0]).squeeze(-1)


def train(cfg, rank, world):
    torch.manual_seed(cfg["seed"])
    num, cat, y = (t[rank::world] for t in table(cfg))
    model = DistributedDataParallel(FTTransformer(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], weight_decay=1e-5, fused=True)
    g = torch.Generator().manual_seed(cfg["seed"] + rank)
    t0 = time.time()
    for update in range(cfg["updates"]):
        running = 0.0
        for micro in range(cfg["accumulate"]):
            rows = torch.randint(0, len(y), (cfg["micro_batch"],), generator=g)
            last = micro == cfg["accumulate"] - 1
            with nullcontext() if last else model.no_sync():
                loss = F.mse_loss(model(num[rows], cat[rows]), y[rows]) / cfg["accumulate"]
                loss.backward()
            running += loss.item()
        opt.step()
        opt.zero_grad()
        if rank == 0 and update % 20 == 0:
            print(f"update {update} mse {running:.4f} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(SETTINGS, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
