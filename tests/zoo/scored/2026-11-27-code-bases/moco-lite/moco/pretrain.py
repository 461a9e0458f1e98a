import argparse

import torch

from .callbacks import CosineLR, KeyUpdate, Printer
from .config import load_config
from .data import TextureImages, TwoViews
from .encoder import MomentumPair
from .loop import PretrainLoop
from .memory import build_queue


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="moco.json")
    cfg = load_config(ap.parse_args().config)
    torch.manual_seed(cfg.seed)
    dataset = TextureImages(cfg)
    model = MomentumPair(cfg.width, cfg.dim, cfg.momentum)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=cfg.lr, momentum=0.9,
                                weight_decay=cfg.weight_decay, fused=True)
    loop = PretrainLoop(cfg, model, build_queue(cfg), TwoViews(dataset, cfg.batch_size, cfg.seed),
                        optimizer, [CosineLR(), KeyUpdate(), Printer()])
    loop.run()


if __name__ == "__main__":
    main()
