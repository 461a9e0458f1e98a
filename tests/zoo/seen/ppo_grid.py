"""PPO on a vectorised grid world: roll out, compute GAE, several epochs of clipped updates."""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Categorical


@dataclass
class Hyper:
    steps: int = 160          # gradient updates in total
    envs: int = 128
    horizon: int = 32
    epochs: int = 4
    minibatches: int = 4
    gamma: float = 0.97
    lam: float = 0.9
    clip: float = 0.2
    size: int = 9


class GridWorld:
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n, size):
        self.n, self.size = n, size
        self.pos = torch.randint(0, size, (n, 2))
        self.goal = torch.randint(0, size, (n, 2))

    def obs(self):
        p = self.pos.float() / self.size
        g = self.goal.float() / self.size
        return torch.cat([p, g, g - p], 1)

    def step(self, a):
        self.pos = (self.pos + self.moves[a]).clamp(0, self.size - 1)
        done = (self.pos == self.goal).all(1)
        self.goal = torch.where(done[:, None], torch.randint(0, self.size, (self.n, 2)), self.goal)
        return self.obs(), done.float() - 0.01, done.float()


class ActorCritic(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, d), nn.Tanh(), nn.Linear(d, d), nn.Tanh())
        self.pi, self.v = nn.Linear(d, 4), nn.Linear(d, 1)

    def forward(self, o):
        h = self.body(o)
        return self.pi(h), self.v(h).squeeze(-1)


@torch.no_grad()
def rollout(env, net, o, hp):
    buf = {k: [] for k in ("obs", "act", "logp", "val", "rew", "done")}
    for _ in range(hp.horizon):
        logits, v = net(o)
        dist = Categorical(logits=logits)
        a = dist.sample()
        nxt, r, d = env.step(a)
        for k, t in zip(buf, (o, a, dist.log_prob(a), v, r, d)):
            buf[k].append(t)
        o = nxt
    data = {k: torch.stack(v) for k, v in buf.items()}
    last = net(o)[1]
    adv, acc = torch.zeros_like(data["rew"]), torch.zeros(hp.envs)
    for t in reversed(range(hp.horizon)):
        nv = last if t == hp.horizon - 1 else data["val"][t + 1]
        delta = data["rew"][t] + hp.gamma * nv * (1 - data["done"][t]) - data["val"][t]
        acc = delta + hp.gamma * hp.lam * (1 - data["done"][t]) * acc
        adv[t] = acc
    data["adv"], data["ret"] = adv, adv + data["val"]
    return {k: v.flatten(0, 1) for k, v in data.items()}, o


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=480)
    hp = Hyper(steps=ap.parse_args().steps)
    torch.manual_seed(4)
    env, net = GridWorld(hp.envs, hp.size), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    o, n = env.obs(), 0
    while n < hp.steps:
        data, o = rollout(env, net, o, hp)
        for _ in range(hp.epochs):
            for idx in torch.randperm(hp.envs * hp.horizon).chunk(hp.minibatches):
                logits, v = net(data["obs"][idx])
                dist = Categorical(logits=logits)
                ratio = (dist.log_prob(data["act"][idx]) - data["logp"][idx]).exp()
                adv = data["adv"][idx]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg = -torch.min(ratio * adv, ratio.clamp(1 - hp.clip, 1 + hp.clip) * adv).mean()
                loss = pg + 0.5 * (v - data["ret"][idx]).square().mean() - 0.01 * dist.entropy().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                n += 1
        print(f"updates {n} reward {data['rew'].mean().item():.4f}") if n % 160 == 0 else None


if __name__ == "__main__":
    main()
