import torch

from . import callbacks, config, nets
from .data import Windows
from .engine import Engine


def main():
    cfg = config.load()
    torch.manual_seed(cfg.fit.seed)
    windows = Windows(cfg.data, cfg.fit.seed)
    net = nets.build(cfg)
    engine = Engine(
        net, windows, cfg,
        scores=callbacks.Scores(cfg.scores.window),
        callbacks=[callbacks.Saver(**cfg.saver), callbacks.Report(cfg.report.every)],
    )
    engine.fit()


if __name__ == "__main__":
    main()
