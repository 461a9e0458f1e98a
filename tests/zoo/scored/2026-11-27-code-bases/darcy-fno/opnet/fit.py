import time

import torch

from .fields import FieldStore
from .objectives import held_out_error, relative_l2
from .operators import OPERATORS
from .settings import settings


def fit(s):
    torch.manual_seed(s.seed)
    store = FieldStore(s)
    net = OPERATORS[s.model](s)
    opt = torch.optim.Adam(net.parameters(), lr=s.lr, fused=True)
    steps = s.epochs * -(-s.samples // s.batch)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    t0, done = time.perf_counter(), 0
    for epoch in range(1, s.epochs + 1):
        running = torch.zeros(())
        for f, u in store.shuffled(s.batch):
            loss = relative_l2(net(f), u)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            running += loss.detach()
            done += 1
        print(f"epoch {epoch} train {running.item() / (steps // s.epochs):.4f} "
              f"{time.perf_counter() - t0:.1f}s", flush=True)
    print(f"{done} steps in {time.perf_counter() - t0:.2f}s, "
          f"held-out error {held_out_error(net, store, s.batch):.4f}", flush=True)


if __name__ == "__main__":
    fit(settings())
