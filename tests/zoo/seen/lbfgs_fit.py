"""Full-batch curve fit of a small network with L-BFGS."""
import argparse

import torch
import torch.nn as nn


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    torch.manual_seed(60)
    x = torch.rand(4000, 3) * 4 - 2
    y = (x[:, 0].sin() * x[:, 1] + x[:, 2].square() * 0.3).unsqueeze(1)
    y = y + 0.02 * torch.randn_like(y)
    net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    opt = torch.optim.LBFGS(net.parameters(), lr=0.8, max_iter=10, history_size=10, line_search_fn="strong_wolfe")

    def closure():
        opt.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    for step in range(args.steps):
        loss = opt.step(closure)
        if step % 20 == 0:
            print(step, float(loss))


if __name__ == "__main__":
    main()
