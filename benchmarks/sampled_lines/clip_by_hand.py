"""A deep narrow net whose gradients are clipped value by value in Python lists, with a norm and an average."""

import torch
from torch import nn


def total_norm(parameters):
    total = 0.0
    for parameter in parameters:
        total += float(parameter.grad.pow(2).sum())
    return total**0.5


def clip(parameters, limit):
    for parameter in parameters:
        values = parameter.grad.flatten().tolist()
        for index, value in enumerate(values):
            if value > limit:
                values[index] = limit
            elif value < -limit:
                values[index] = -limit
        parameter.grad.copy_(torch.tensor(values).view_as(parameter.grad))


def update_average(parameters, averages):
    for parameter, average in zip(parameters, averages, strict=True):
        average.mul_(0.99).add_(parameter.detach(), alpha=0.01)


def main():
    torch.manual_seed(0)
    layers = []
    for _ in range(12):
        layers += [nn.Linear(48, 48), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(48, 1))
    parameters = list(model.parameters())
    averages = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    x, y = torch.randn(256, 48), torch.randn(256, 1)
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if total_norm(parameters) > 0:
            clip(parameters, 0.05)
        optimizer.step()
        update_average(parameters, averages)


main()
