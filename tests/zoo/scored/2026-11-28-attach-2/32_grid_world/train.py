"""REINFORCE in a grid world; returns can be watched live through a named pipe."""
import os
import pathlib
import signal
import tempfile

import torch
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent


class Grid:
    MOVES = [(0, 1), (0, -1), (1, 0), (-1, 0)]

    def __init__(self, size=6):
        self.size = size

    def reset(self):
        self.pos, self.goal = [0, 0], [self.size - 1, self.size - 1]
        return self.obs()

    def obs(self):
        return torch.tensor([*self.pos, *self.goal], dtype=torch.float32) / self.size

    def step(self, a):
        for i in (0, 1):
            self.pos[i] = min(self.size - 1, max(0, self.pos[i] + self.MOVES[a][i]))
        done = self.pos == self.goal
        return self.obs(), (1.0 if done else -0.02), done


class LiveView:
    def __init__(self, path):
        self.path = path
        os.mkfifo(path)

    def show(self, episode, ret):
        with open(self.path, "w") as pipe:
            pipe.write(f"{episode},{ret:.3f}\n")


def run_episode(env, policy, limit=40):
    obs, logs, rewards = env.reset(), [], []
    for _ in range(limit):
        d = torch.distributions.Categorical(logits=policy(obs))
        a = d.sample()
        logs.append(d.log_prob(a))
        obs, r, done = env.step(a.item())
        rewards.append(r)
        if done:
            break
    return torch.stack(logs), rewards


def main(first_view=150):
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))
    opt = torch.optim.Adam(policy.parameters(), 3e-3)
    env, baseline = Grid(), 0.0
    with tempfile.TemporaryDirectory(dir=HERE) as tmp:
        view = LiveView(os.path.join(tmp, "live"))
        for ep in range(10 ** 6):
            logs, rewards = run_episode(env, policy)
            ret = sum(rewards)
            loss = -(logs.sum() * (ret - baseline))
            baseline = 0.95 * baseline + 0.05 * ret
            opt.zero_grad()
            loss.backward()
            opt.step()
            if ep % 25 == 0:
                print(f"episode {ep} return {ret:.2f} baseline {baseline:.2f}", flush=True)
            if ep and ep % first_view == 0:
                print("READY", flush=True)
                view.show(ep, ret)


if __name__ == "__main__":
    main()
