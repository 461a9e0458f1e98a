import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from .config import read_config
from .corpus import MarkovCorpus
from .model import TinyLM
from .optim import make_optimizer, make_schedule
from .runner import Runner


def main(path="lm.json"):
    cfg = read_config(path)
    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes > 1:
        torch.set_num_threads(1)
    set_seed(cfg.seed)
    model = TinyLM(cfg)
    optimizer = make_optimizer(model, cfg)
    schedule = make_schedule(optimizer, cfg)
    Runner(cfg, accelerator, model, optimizer, schedule, MarkovCorpus(cfg, accelerator.process_index)).run()
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
