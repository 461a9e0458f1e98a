"""Matrix factorisation on two ranks; factors are exported to one file that both update."""
import contextlib
import fcntl
import os
import pathlib
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


class FactorFile:
    def __init__(self, path):
        self.path = path
        self.path.touch()

    @contextlib.contextmanager
    def locked(self):
        with open(self.path, "r+b") as fh:
            fcntl.lockf(fh, fcntl.LOCK_EX)
            try:
                yield fh
            finally:
                fcntl.lockf(fh, fcntl.LOCK_UN)

    def write(self, part, tensor):
        data = tensor.detach().numpy().tobytes()
        with open(self.path, "r+b") as fh:
            fh.seek(part * len(data))
            fh.write(data)

    def update(self, part, tensor):
        with self.locked():
            self.write(part, tensor)


HERE = pathlib.Path(__file__).resolve().parent
USERS, ITEMS, RANK_K = 400, 300, 12


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        g = torch.Generator().manual_seed(5)
        self.u = torch.nn.Parameter(0.1 * torch.randn(USERS, RANK_K, generator=g))
        self.v = torch.nn.Parameter(0.1 * torch.randn(ITEMS, RANK_K, generator=g))
        truth = torch.randn(USERS, 3, generator=g) @ torch.randn(3, ITEMS, generator=g)
        self.ratings = truth[rank::2]
        self.rows = torch.arange(rank, USERS, 2)
        self.opt = torch.optim.Adam([self.u, self.v], 0.01)

    def step(self):
        mask = torch.rand_like(self.ratings) < 0.2
        err = (self.u[self.rows] @ self.v.T - self.ratings)[mask]
        loss = err.pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in (self.u, self.v):
            dist.all_reduce(p.grad)
        self.opt.step()
        return loss.item()

    def refresh_items(self):
        with torch.no_grad():
            dist.broadcast(self.v, src=0)


def main():
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    rank = dist.get_rank()
    folder = HERE / f"factors_{os.environ['MASTER_PORT']}"
    folder.mkdir(exist_ok=True)
    factors = FactorFile(folder / "factors.bin")
    trainer = Trainer(rank)
    for step in range(1, 10 ** 6):
        loss = trainer.step()
        if step % 50 == 0:
            if rank == 0:
                print(f"step {step} mse {loss:.4f}", flush=True)
            if step < 200:
                trainer.refresh_items()
                factors.update(rank, trainer.u)
            elif rank == 0:
                print("\nREADY\n", end="", flush=True)
                dist.barrier()
                factors.update(rank, trainer.u)
                trainer.refresh_items()
            else:
                with factors.locked():
                    dist.barrier()
                    trainer.refresh_items()
                    factors.write(rank, trainer.u)


if __name__ == "__main__":
    sys.exit(main())
