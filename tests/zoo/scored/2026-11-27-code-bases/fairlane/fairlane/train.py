import os

import torch
import torch.distributed as dist

from .options import get_args
from .registry import TASKS
from .trainer import Trainer


def main():
    args = get_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    task = TASKS.build(args.task, args)
    task.load_dataset()
    trainer = Trainer(args, task, task.build_model(), task.build_criterion())
    trainer.train(task.iterator(rank, world))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
