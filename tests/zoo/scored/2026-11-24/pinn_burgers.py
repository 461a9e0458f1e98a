"""Physics-informed network for the viscous Burgers equation, trained with L-BFGS."""
import argparse
import math
import time

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))
        for m in self.net:
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, xt):
        return self.net(xt)


def residual(u_fn, xt, nu):
    """u_t + u u_x - nu u_xx at the collocation points."""
    u = u_fn(xt)
    du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
    u_x, u_t = du[:, :1], du[:, 1:]
    u_xx = torch.autograd.grad(u_x.sum(), xt, create_graph=True)[0][:, :1]
    return u_t + u * u_x - nu * u_xx


def collocation(n, seed):
    sobol = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed)
    pts = sobol.draw(n)
    return torch.stack([2 * pts[:, 0] - 1, pts[:, 1]], 1).requires_grad_()


def boundary(n):
    x = torch.linspace(-1, 1, n)
    t = torch.linspace(0, 1, n)
    start = torch.stack([x, torch.zeros(n)], 1)
    walls = torch.cat([torch.stack([torch.full((n,), s), t], 1) for s in (-1.0, 1.0)])
    target = torch.cat([-torch.sin(math.pi * x), torch.zeros(2 * n)]).unsqueeze(1)
    return torch.cat([start, walls]), target


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--points", type=int, default=4096)
    ap.add_argument("--width", type=int, default=48)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--outer", type=int, default=120)
    ap.add_argument("--inner", type=int, default=5)
    ap.add_argument("--nu", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    model = Field(args.width, args.depth)
    xt = collocation(args.points, args.seed)
    bc_xt, bc_u = boundary(128)
    opt = torch.optim.LBFGS(
        model.parameters(), lr=0.8, max_iter=args.inner, history_size=30,
        tolerance_grad=0.0, tolerance_change=0.0,
    )

    def closure():
        opt.zero_grad(set_to_none=True)
        pde = residual(model, xt, args.nu).pow(2).mean()
        data = (model(bc_xt) - bc_u).pow(2).mean()
        loss = pde + 10.0 * data
        loss.backward()
        return loss

    t0 = time.time()
    for outer in range(1, args.outer + 1):
        loss = opt.step(closure)
        if outer % 20 == 0:
            print(f"outer {outer:4d}  loss {loss.item():.3e}  {time.time() - t0:.1f}s", flush=True)
    with torch.inference_mode():
        mid = model(torch.tensor([[0.5, 0.5]])).item()
    print(f"u(0.5, 0.5) = {mid:.4f}")


if __name__ == "__main__":
    main()
