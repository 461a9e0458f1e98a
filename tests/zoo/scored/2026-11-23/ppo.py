"""PPO on a batch of simulated pendulums; the environment is one tensor program."""
import time
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Args:
    num_envs: int = 1024
    num_steps: int = 24
    iterations: int = 15
    update_epochs: int = 2
    minibatches: int = 4
    hidden: int = 384
    gamma: float = 0.97
    lam: float = 0.95
    clip: float = 0.2
    lr: float = 7e-4
    seed: int = 1


class Pendulums:
    def __init__(self, n):
        self.theta = (torch.rand(n) * 2 - 1) * torch.pi
        self.omega = torch.randn(n)

    def observe(self):
        return torch.stack([self.theta.cos(), self.theta.sin(), self.omega / 8], 1)

    def step(self, torque):
        angle = torch.remainder(self.theta + torch.pi, 2 * torch.pi) - torch.pi
        reward = -(angle.square() + 0.1 * self.omega.square() + 0.001 * torque.square())
        self.omega = (self.omega + (15 * self.theta.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self.theta = self.theta + self.omega * 0.05
        return self.observe(), reward / 10


class Agent(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.heads = nn.Linear(hidden, 2)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, obs):
        mean, value = self.heads(self.body(obs)).unbind(-1)
        return mean, value

    def log_prob(self, mean, action):
        return -0.5 * ((action - mean) / self.log_std.exp()).square() - self.log_std


def main():
    a = Args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)
    env, agent = Pendulums(a.num_envs), Agent(a.hidden)
    opt = torch.optim.Adam(agent.parameters(), lr=a.lr, eps=1e-5, fused=True)
    T, N = a.num_steps, a.num_envs
    obs_buf, act_buf = torch.zeros(T, N, 3), torch.zeros(T, N)
    logp_buf, val_buf, rew_buf = torch.zeros(T, N), torch.zeros(T + 1, N), torch.zeros(T, N)
    obs = env.observe()
    start = time.time()
    for iteration in range(1, a.iterations + 1):
        with torch.no_grad():
            for t in range(T):
                mean, value = agent(obs)
                action = mean + agent.log_std.exp() * torch.randn(N)
                obs_buf[t], act_buf[t], val_buf[t] = obs, action, value
                logp_buf[t] = agent.log_prob(mean, action)
                obs, rew_buf[t] = env.step(action.clamp(-2, 2))
            val_buf[T] = agent(obs)[1]
            delta = rew_buf + a.gamma * val_buf[1:] - val_buf[:-1]
            adv = torch.zeros(T, N)
            last = torch.zeros(N)
            for t in reversed(range(T)):
                last = delta[t] + a.gamma * a.lam * last
                adv[t] = last
            returns = (adv + val_buf[:-1]).flatten()
            adv = ((adv - adv.mean()) / (adv.std() + 1e-8)).flatten()
        o, ac, lp = obs_buf.flatten(0, 1), act_buf.flatten(), logp_buf.flatten()
        for _ in range(a.update_epochs):
            for idx in torch.randperm(T * N).chunk(a.minibatches):
                mean, value = agent(o[idx])
                ratio = (agent.log_prob(mean, ac[idx]) - lp[idx]).exp()
                gain = torch.minimum(ratio * adv[idx], ratio.clamp(1 - a.clip, 1 + a.clip) * adv[idx])
                loss = -gain.mean() + 0.5 * (value - returns[idx]).square().mean() - 0.001 * agent.log_std.mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5, foreach=True)
                opt.step()
        if iteration % 5 == 0:
            print(f"iteration {iteration} reward {rew_buf.mean().item():.4f} {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
