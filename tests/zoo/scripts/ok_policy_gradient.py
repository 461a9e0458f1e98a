"""REINFORCE on a balancing pole that is simulated in Python."""

import argparse
import math
import random

import torch
from torch import nn


class Pole:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.state = [self.rng.uniform(-0.05, 0.05) for _ in range(4)]
        self.age = 0
        return self.state

    def step(self, action):
        x, dx, a, da = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * da * da * math.sin(a)) / 1.1
        turn = (9.8 * math.sin(a) - math.cos(a) * push) / (0.5 * (4 / 3 - 0.1 * math.cos(a) ** 2 / 1.1))
        accel = push - 0.05 * turn * math.cos(a) / 1.1
        self.state = [x + 0.02 * dx, dx + 0.02 * accel, a + 0.02 * da, da + 0.02 * turn]
        self.age += 1
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21 or self.age >= 200
        return self.state, 1.0, done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    envs = [Pole(random.Random(i)) for i in range(8)]
    policy = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    states = [env.reset() for env in envs]
    for update in range(args.steps):
        seen, taken, rewards, ends = [], [], [], []
        for _ in range(64):
            observation = torch.tensor(states)
            with torch.no_grad():
                actions = torch.distributions.Categorical(logits=policy(observation)).sample()
            seen.append(observation)
            taken.append(actions)
            results = [env.step(int(a)) for env, a in zip(envs, actions)]
            rewards.append([r for _, r, _ in results])
            ends.append([d for _, _, d in results])
            states = [env.reset() if done else s for env, (s, _, done) in zip(envs, results)]
        returns = torch.zeros(64, 8)
        tail = torch.zeros(8)
        for t in reversed(range(64)):
            tail = torch.tensor(rewards[t]) + 0.99 * tail * (1 - torch.tensor(ends[t], dtype=torch.float))
            returns[t] = tail
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        dist = torch.distributions.Categorical(logits=policy(torch.stack(seen)))
        loss = -(dist.log_prob(torch.stack(taken)) * returns).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
