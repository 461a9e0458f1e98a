import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import data, hooks, nets  # noqa: F401
from .registry import build


class Loop:
    def __init__(self, cfg, rank, world):
        t = cfg["train"]
        torch.manual_seed(t["seed"])
        self.cfg, self.rank = cfg, rank
        self.data = build("data", cfg["data"], rank=rank, world=world)
        backbone = build("backbone", cfg["backbone"])
        head = build("head", cfg["head"], width=backbone.width)
        self.model = DistributedDataParallel(nets.Classifier(backbone, head), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=t["lr"], weight_decay=t["weight_decay"], fused=True
        )
        self.hooks = [build("hook", h) for h in cfg["hooks"]]
        self.step, self.loss = 0, None

    def fire(self, event):
        for h in self.hooks:
            getattr(h, event)(self)

    def run(self):
        t = self.cfg["train"]
        batches = self.data.stream(t["batch_per_rank"])
        self.fire("start")
        for self.step in range(t["steps"]):
            x, y = next(batches)
            self.fire("before")
            self.loss = self.model(x, y)
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()
            self.fire("after")
        self.fire("finish")


def main():
    with open("config.json") as f:
        cfg = json.load(f)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    Loop(cfg, dist.get_rank(), int(os.environ["WORLD_SIZE"])).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
