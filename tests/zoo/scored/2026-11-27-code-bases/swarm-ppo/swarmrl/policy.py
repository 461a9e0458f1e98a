import torch
from torch import nn
from torch.distributions import Normal


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden, layers):
        super().__init__()
        self.actor = mlp([obs_dim] + [hidden] * layers + [act_dim])
        self.critic = mlp([obs_dim] + [hidden] * layers + [1])
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def dist(self, obs):
        return Normal(self.actor(obs), self.log_std.exp(), validate_args=False)

    def value(self, obs):
        return self.critic(obs).squeeze(-1)

    @torch.inference_mode()
    def act(self, obs):
        d = self.dist(obs)
        a = d.sample()
        return a, d.log_prob(a).sum(-1), self.value(obs)
