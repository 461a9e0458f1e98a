import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from .config import get_config
from .data import TokenStream, make_corpus
from .model import GPT
from .optim import configure_optimizer, lr_at
from .trainer import Trainer


def main():
    gpt_cfg, cfg = get_config()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    tokens = make_corpus(cfg.corpus_tokens, gpt_cfg.vocab_size, cfg.seed)
    model = GPT(gpt_cfg)
    optimizer = configure_optimizer(model, cfg)
    model = DDP(model)
    stream = TokenStream(tokens, gpt_cfg.block_size, cfg.micro_batch, rank, cfg.seed)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
    Trainer(model, optimizer, stream, cfg, lr_at, rank).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
