import contextlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .optim import build_optimizer, inverse_sqrt


class Trainer:
    def __init__(self, args, task, model, criterion):
        self.args, self.task, self.criterion = args, task, criterion
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if self.world > 1 else 0
        self.plain_model = model
        self.model = DistributedDataParallel(model) if self.world > 1 else model
        self.optimizer = build_optimizer(args, model.parameters())
        self.scheduler = inverse_sqrt(self.optimizer, args.warmup)
        self.num_updates = 0
        self.meter = {"loss": 0.0, "ntokens": 0}

    @property
    def is_master(self):
        return self.rank == 0

    def _reduce_context(self, micro, last):
        if self.args.defer_reduce and self.world > 1 and micro < last:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def train_step(self, samples):
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        last = len(samples) - 1
        for i, sample in enumerate(samples):
            with self._reduce_context(i, last):
                log = self.task.train_step(sample, self.model, self.criterion, 1.0 / len(samples))
            self.meter["loss"] += log["loss"] / len(samples)
            self.meter["ntokens"] += log["ntokens"]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.num_updates += 1

    def validate(self):
        self.plain_model.eval()
        total = torch.zeros(2)
        for sample in self.task.valid_batches(self.rank, self.world):
            log = self.task.valid_step(sample, self.plain_model, self.criterion)
            total += torch.stack([log["loss"] * log["ntokens"], torch.tensor(float(log["ntokens"]))])
        if self.world > 1:
            dist.all_reduce(total)
        self.best = min(getattr(self, "best", float("inf")), (total[0] / total[1]).item())

    def train(self, itr):
        start = time.perf_counter()
        while self.num_updates < self.args.max_update:
            self.train_step([next(itr) for _ in range(self.args.update_freq)])
            if self.num_updates % self.args.validate_interval_updates == 0:
                self.validate()
            if self.is_master and self.num_updates % self.args.log_interval == 0:
                loss = float(self.meter["loss"]) / self.args.log_interval
                wps = self.world * self.meter["ntokens"] / (time.perf_counter() - start)
                print(f"| update {self.num_updates:4d} | loss {loss:.3f} | wps {wps:.0f} "
                      f"| best valid {getattr(self, 'best', float('nan')):.3f}", flush=True)
                self.meter["loss"] = 0.0
        if self.is_master:
            print(f"| trained {self.num_updates} updates in {time.perf_counter() - start:.2f}s", flush=True)
