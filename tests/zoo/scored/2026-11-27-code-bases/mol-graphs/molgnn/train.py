import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from .config import parse
from .data import GraphBatches, make_graphs
from .engine import Engine
from .model import GraphRegressor


def main():
    cfg = parse()
    set_seed(cfg.seed)
    model = GraphRegressor(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    batches = GraphBatches(make_graphs(cfg, cfg.graphs, cfg.seed), cfg.batch, cfg.seed)
    Engine(cfg, Accelerator(cpu=True), model, optimizer, batches, make_graphs(cfg, cfg.eval_graphs, cfg.seed + 1)).fit()


if __name__ == "__main__":
    main()
