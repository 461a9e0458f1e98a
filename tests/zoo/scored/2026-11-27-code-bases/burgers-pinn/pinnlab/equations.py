import math

import torch

EQUATIONS = {}


def equation(name):
    def wrap(cls):
        EQUATIONS[name] = cls
        return cls
    return wrap


def partials(u, z):
    (du,) = torch.autograd.grad(u, z, torch.ones_like(u), create_graph=True)
    u_x, u_t = du[:, :1], du[:, 1:]
    (d2,) = torch.autograd.grad(u_x, z, torch.ones_like(u_x), create_graph=True)
    return u_x, u_t, d2[:, :1]


@equation("burgers")
class Burgers:
    viscosity = 0.01 / math.pi

    def residual(self, net, z):
        z = z.requires_grad_(True)
        u = net(z)
        u_x, u_t, u_xx = partials(u, z)
        return u_t + u * u_x - self.viscosity * u_xx

    def initial_value(self, z):
        return -torch.sin(math.pi * z[:, :1])

    def boundary_value(self, z):
        return torch.zeros(len(z), 1)


@equation("allen-cahn")
class AllenCahn:
    diffusion = 1e-4

    def residual(self, net, z):
        z = z.requires_grad_(True)
        u = net(z)
        _, u_t, u_xx = partials(u, z)
        return u_t - self.diffusion * u_xx + 5.0 * (u ** 3 - u)

    def initial_value(self, z):
        x = z[:, :1]
        return x ** 2 * torch.cos(math.pi * x)

    def boundary_value(self, z):
        return -torch.ones(len(z), 1)
