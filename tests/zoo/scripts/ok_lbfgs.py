"""Physics-informed fit of a boundary-value problem with L-BFGS."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(0)

    net = nn.Sequential(nn.Linear(1, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=8, history_size=10)
    points = torch.linspace(0, 1, 400)[:, None].requires_grad_()
    edges = torch.tensor([[0.0], [1.0]])

    def closure():
        optimizer.zero_grad()
        u = net(points)
        (du,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), points, create_graph=True)
        loss = (ddu + torch.sin(3.0 * points)).square().mean() + net(edges).square().sum()
        loss.backward()
        return loss

    for _ in range(args.steps):
        loss = optimizer.step(closure)
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
