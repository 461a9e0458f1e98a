"""REINFORCE on a batch of simulated cart-poles (vectorised physics)."""
import argparse
import math

import torch
from torch import nn
from torch.distributions import Categorical


class CartPoles:
    def __init__(self, n):
        self.n = n

    def reset(self):
        self.s = (torch.rand(self.n, 4) - 0.5) * 0.1
        self.alive = torch.ones(self.n, dtype=torch.bool)
        return self.s

    def step(self, action):
        x, xd, th, thd = self.s.unbind(1)
        force = action.float() * 20.0 - 10.0
        c, s = th.cos(), th.sin()
        tmp = (force + 0.05 * thd * thd * s) / 1.1
        tha = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        xa = tmp - 0.05 * tha * c / 1.1
        self.s = torch.stack([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha], 1)
        reward = self.alive.float()
        self.alive &= (self.s[:, 0].abs() < 2.4) & (self.s[:, 2].abs() < 12 * math.pi / 180)
        return self.s, reward


def returns(rewards, gamma=0.99):
    out, acc = [], torch.zeros_like(rewards[0])
    for r in reversed(rewards):
        acc = r + gamma * acc
        out.append(acc)
    return torch.stack(out[::-1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=130, help="policy updates")
    args = ap.parse_args()
    torch.manual_seed(2)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    opt = torch.optim.Adam(policy.parameters(), lr=5e-3, fused=True)
    env = CartPoles(256)
    for update in range(args.steps):
        obs = env.reset()
        seen, taken, rewards = [], [], []
        for _ in range(40):
            with torch.no_grad():
                a = Categorical(logits=policy(obs)).sample()
            seen.append(obs)
            taken.append(a)
            obs, r = env.step(a)
            rewards.append(r)
        g = returns(rewards)
        alive = torch.stack(rewards)
        adv = (g - g.mean()) / (g.std() + 1e-6)
        logp = Categorical(logits=policy(torch.stack(seen))).log_prob(torch.stack(taken))
        loss = -(logp * adv * alive).sum() / alive.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if update % 25 == 0:
            print(f"update {update}: mean length {alive.sum(0).mean().item():.1f}")


if __name__ == "__main__":
    main()
