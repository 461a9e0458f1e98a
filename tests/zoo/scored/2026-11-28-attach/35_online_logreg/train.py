"""Online logistic regression with a crash-safe journal of every prediction."""
import argparse
import os
import shutil
import time

import torch


class Journal:
    def __init__(self, root):
        self.root = root
        self.active = False

    def commit(self, step, rows):
        if not self.active:
            return
        for j, row in enumerate(rows):
            name = os.path.join(self.root, f"{step % 50:03d}_{j:04d}.rec")
            fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            os.write(fd, f"{step},{row:.6f}\n".encode())
            os.fsync(fd)
            os.close(fd)


class OnlineLogReg(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(d))
        self.b = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x @ self.w + self.b


def stream(d, n, seed):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(d, generator=g)
    while True:
        x = torch.randn(n, d, generator=g)
        yield x, (x @ truth + 0.2 * torch.randn(n, generator=g) > 0).float()


def run(args, root):
    model = OnlineLogReg(args.dim)
    opt = torch.optim.Adagrad(model.parameters(), 0.1)
    journal = Journal(root)
    t0 = time.time()
    for step, (x, y) in enumerate(stream(args.dim, args.batch, 4)):
        logits = model(x)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        journal.active = step >= args.journal_from
        journal.commit(step, logits.detach().sigmoid().tolist())
        if step == args.journal_from + 3:
            print("READY", flush=True)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if time.time() - t0 > args.seconds:
            break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=200)
    ap.add_argument("--batch", type=int, default=400)
    ap.add_argument("--journal-from", type=int, default=80)
    ap.add_argument("--seconds", type=float, default=480)
    args = ap.parse_args()
    torch.set_num_threads(1)
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.join(here, "journal")
    os.makedirs(root, exist_ok=True)
    run(args, root)
    shutil.rmtree(root)
