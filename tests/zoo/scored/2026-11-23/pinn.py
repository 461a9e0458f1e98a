"""Physics-informed network for the heat equation, trained with L-BFGS."""
import math
import time

import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(2)

width, depth, interior, boundary, steps = 64, 3, 6000, 400, 110
layers = [nn.Linear(2, width), nn.Tanh()]
for _ in range(depth - 1):
    layers += [nn.Linear(width, width), nn.Tanh()]
net = nn.Sequential(*layers, nn.Linear(width, 1))

xt = torch.rand(interior, 2)
x0 = torch.cat([torch.rand(boundary, 1), torch.zeros(boundary, 1)], 1)
u0 = torch.sin(math.pi * x0[:, :1])
side = torch.cat([torch.randint(0, 2, (boundary, 1)).float(), torch.rand(boundary, 1)], 1)
edge = torch.cat([x0, side])
edge_u = torch.cat([u0, torch.zeros(boundary, 1)])
alpha = 0.1

opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, history_size=20)


def closure():
    opt.zero_grad(set_to_none=True)
    points = xt.detach().requires_grad_(True)
    u = net(points)
    du, = torch.autograd.grad(u.sum(), points, create_graph=True)
    d2u, = torch.autograd.grad(du[:, 0].sum(), points, create_graph=True)
    residual = du[:, 1] - alpha * d2u[:, 0]
    loss = residual.square().mean() + (net(edge) - edge_u).square().mean()
    loss.backward()
    return loss


start = time.time()
for step in range(1, steps + 1):
    loss = opt.step(closure)
    if step % 55 == 0:
        print(f"step {step} loss {loss.item():.3e} {time.time() - start:.1f}s", flush=True)
