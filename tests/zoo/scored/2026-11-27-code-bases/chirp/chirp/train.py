import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed

from .augment import SpecMask
from .config import Config
from .data import Keywords, make_loader
from .model import Spotter
from .watch import GradientWatch


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum() for x, y in loader)
    model.train()
    return right.item() / len(loader.dataset)


def main():
    c = Config()
    set_seed(c.seed)
    accelerator = Accelerator(cpu=True)
    train = make_loader(Keywords(c, c.clips, c.seed), c.batch, True, c.seed)
    test = make_loader(Keywords(c, c.held_out, c.seed + 1), 128, False)
    net = Spotter(c)
    optimizer = torch.optim.AdamW(net.parameters(), lr=c.lr, fused=True)
    total = len(train) * c.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, c.lr, total_steps=total)
    model, optimizer = accelerator.prepare(net, optimizer)
    augment, watch = SpecMask(c.mask_frames, c.mask_bands), GradientWatch(net, c.watch_every)
    step, t0 = 0, time.perf_counter()
    for _ in range(c.epochs):
        for x, y in train:
            watch.begin(step)
            loss = F.cross_entropy(model(augment(x)), y)
            optimizer.zero_grad(set_to_none=True)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            watch.end()
            step += 1
            if step % c.log_every == 0:
                ms = (time.perf_counter() - t0) / step * 1e3
                accelerator.print(f"{step}/{total} loss {loss.item():.4f} {ms:.1f} ms/step", flush=True)
    accelerator.print(f"test accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
