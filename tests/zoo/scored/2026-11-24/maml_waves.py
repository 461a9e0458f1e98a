"""MAML over families of waveforms; the tasks of a meta-batch run together under vmap."""
import argparse
import time

import torch
from torch import nn
from torch.func import functional_call, grad, vmap


def build_net(width):
    return nn.Sequential(
        nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1),
    )


class WaveTasks:
    """amplitude * sin(freq * x + phase) + slope * x, with a new draw per task."""

    def __init__(self, shots, queries, seed):
        self.shots, self.total = shots, shots + queries
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, n):
        u = torch.rand(4, n, 1, 1, generator=self.gen)
        x = 10 * torch.rand(n, self.total, 1, generator=self.gen) - 5
        y = (0.2 + 4.0 * u[0]) * torch.sin((0.6 + u[1]) * x + 3.14 * u[2]) + 0.3 * (u[3] - 0.5) * x
        s = self.shots
        return x[:, :s], y[:, :s], x[:, s:], y[:, s:]


class MAML:
    def __init__(self, net, inner_lr, inner_steps):
        self.net, self.inner_lr, self.inner_steps = net, inner_lr, inner_steps

    def task_loss(self, params, x, y):
        return nn.functional.mse_loss(functional_call(self.net, params, (x,)), y)

    def adapt(self, params, x, y):
        for _ in range(self.inner_steps):
            g = grad(self.task_loss)(params, x, y)
            params = {k: p - self.inner_lr * g[k] for k, p in params.items()}
        return params

    def query_loss(self, params, xs, ys, xq, yq):
        return self.task_loss(self.adapt(params, xs, ys), xq, yq)

    def meta_loss(self, batch):
        params = dict(self.net.named_parameters())
        losses = vmap(self.query_loss, in_dims=(None, 0, 0, 0, 0))(params, *batch)
        return losses.mean()


def evaluate(maml, tasks, n):
    params = {k: p.detach() for k, p in maml.net.named_parameters()}
    batch = tasks.sample(n)
    return vmap(maml.query_loss, in_dims=(None, 0, 0, 0, 0))(params, *batch).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--meta-batch", type=int, default=96)
    p.add_argument("--shots", type=int, default=16)
    p.add_argument("--queries", type=int, default=32)
    p.add_argument("--width", type=int, default=80)
    p.add_argument("--inner-lr", type=float, default=0.02)
    p.add_argument("--inner-steps", type=int, default=3)
    p.add_argument("--meta-lr", type=float, default=1e-3)
    p.add_argument("--iterations", type=int, default=180)
    p.add_argument("--seed", type=int, default=12)
    args = p.parse_args()

    torch.manual_seed(args.seed)
    maml = MAML(build_net(args.width), args.inner_lr, args.inner_steps)
    tasks = WaveTasks(args.shots, args.queries, args.seed)
    opt = torch.optim.Adam(maml.net.parameters(), lr=args.meta_lr, fused=True)
    tic, smooth = time.time(), torch.zeros(())
    for it in range(1, args.iterations + 1):
        loss = maml.meta_loss(tasks.sample(args.meta_batch))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        smooth += loss.detach()
        if it % 30 == 0:
            print(f"meta-iter {it}: query mse {smooth.item() / 30:.4f} ({time.time() - tic:.1f}s)", flush=True)
            smooth.zero_()
    print(f"held-out tasks: {evaluate(maml, WaveTasks(args.shots, args.queries, 999), 256):.4f}")


if __name__ == "__main__":
    main()
