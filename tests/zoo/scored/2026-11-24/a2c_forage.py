"""Advantage actor-critic on a batch of foraging grids; the environments step as tensors."""
import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    seed: int = 1
    num_envs: int = 512
    rollout: int = 8
    updates: int = 130
    size: int = 10
    horizon: int = 40
    gamma: float = 0.97
    gae_lambda: float = 0.95
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    lr: float = 7e-4
    max_grad_norm: float = 0.5


class ForageEnv:
    """An agent walks on a grid and eats what it finds; walls clamp its motion."""

    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, a):
        self.n, self.size, self.horizon = a.num_envs, a.size, a.horizon
        self.gen = torch.Generator().manual_seed(a.seed)
        self.rows = torch.arange(self.n)
        self.food = torch.zeros(self.n, self.size, self.size)
        self.pos = torch.zeros(self.n, 2, dtype=torch.long)
        self.age = torch.randint(self.horizon, (self.n,), generator=self.gen)
        self._respawn(torch.ones(self.n, dtype=torch.bool))

    def _respawn(self, mask):
        fresh = (torch.rand(self.food.shape, generator=self.gen) < 0.12).float()
        self.food = torch.where(mask.view(-1, 1, 1), fresh, self.food)
        spot = torch.randint(self.size, self.pos.shape, generator=self.gen)
        self.pos = torch.where(mask.unsqueeze(1), spot, self.pos)

    def observe(self):
        agent = torch.zeros_like(self.food)
        agent[self.rows, self.pos[:, 0], self.pos[:, 1]] = 1.0
        return torch.stack([self.food, agent], 1)

    def step(self, action):
        self.pos = (self.pos + self.moves[action]).clamp(0, self.size - 1)
        r, c = self.pos.unbind(1)
        reward = self.food[self.rows, r, c]
        self.food[self.rows, r, c] = 0.0
        self.age += 1
        done = self.age >= self.horizon
        self.age.masked_fill_(done, 0)
        self._respawn(done)
        return self.observe(), reward - 0.01, done.float()


class Agent(nn.Module):
    def __init__(self, size, n_actions=4):
        super().__init__()
        self.torso = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * ((size + 1) // 2) ** 2, 128), nn.ReLU(),
        )
        self.pi, self.v = nn.Linear(128, n_actions), nn.Linear(128, 1)

    def forward(self, obs):
        h = self.torso(obs)
        return self.pi(h).log_softmax(-1), self.v(h).squeeze(-1)


def gae(rewards, values, dones, last_value, a):
    adv, out = torch.zeros_like(last_value), []
    nxt = last_value
    for t in reversed(range(a.rollout)):
        live = 1.0 - dones[t]
        delta = rewards[t] + a.gamma * nxt * live - values[t]
        adv = delta + a.gamma * a.gae_lambda * live * adv
        out.append(adv)
        nxt = values[t]
    return torch.stack(out[::-1])


def main(a):
    torch.manual_seed(a.seed)
    env, agent = ForageEnv(a), Agent(a.size)
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=a.lr, alpha=0.99, eps=1e-5, foreach=True)
    obs, t0, scores = env.observe(), time.time(), torch.zeros(())
    for update in range(1, a.updates + 1):
        logps, ents, values, rewards, dones = [], [], [], [], []
        for _ in range(a.rollout):
            logits, value = agent(obs)
            action = torch.multinomial(logits.detach().exp(), 1)
            logps.append(logits.gather(1, action).squeeze(1))
            ents.append(-(logits.exp() * logits).sum(1))
            values.append(value)
            obs, reward, done = env.step(action.squeeze(1))
            rewards.append(reward)
            dones.append(done)
        values = torch.stack(values)
        with torch.no_grad():
            last = agent(obs)[1]
            adv = gae(rewards, values, dones, last, a)
            returns = adv + values
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        pg = -(torch.stack(logps) * adv).mean()
        loss = pg + a.vf_coef * F.mse_loss(values, returns) - a.ent_coef * torch.stack(ents).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), a.max_grad_norm, foreach=True)
        optimizer.step()
        scores += torch.stack(rewards).mean()
        if update % 26 == 0:
            frames = update * a.rollout * a.num_envs
            print(f"frames {frames}  reward/step {scores.item() / 26:.4f}  fps {frames / (time.time() - t0):.0f}", flush=True)
            scores.zero_()


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--updates", type=int, default=130)
    main(Args(**vars(cli.parse_args())))
