import torch

from .config import load_config
from .monitors import ConsoleMonitor
from .solver import Solver


def main():
    cfg = load_config()
    torch.manual_seed(cfg.seed)
    Solver(cfg, [ConsoleMonitor(cfg.log_every)]).run()


if __name__ == "__main__":
    main()
