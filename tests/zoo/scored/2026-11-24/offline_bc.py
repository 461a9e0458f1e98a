"""Goal-conditioned behaviour cloning from logged episodes of a point-mass with obstacles."""
import argparse
import gc
import random
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Transition:
    def __init__(self, obs, action, reward, info):
        self.obs = obs
        self.action = action
        self.reward = reward
        self.info = info


def collect_episodes(n_episodes, horizon, obs_dim, act_dim, seed):
    """Scripted expert; the logs hold one Transition per time step, as the simulator returns them."""
    rng = np.random.default_rng(seed)
    gains = rng.normal(0, 0.5, size=(obs_dim, act_dim)).astype(np.float32)
    episodes = []
    for ep in range(n_episodes):
        obs = rng.normal(size=(horizon, obs_dim)).astype(np.float32).cumsum(0) * 0.2
        act = np.tanh(obs @ gains + rng.normal(0, 0.05, size=(horizon, act_dim))).astype(np.float32)
        rew = -np.linalg.norm(obs[:, :2], axis=1)
        episodes.append([
            Transition(obs[t], act[t], float(rew[t]), {"episode": ep, "t": t, "contacts": [], "goal": [0.0, 0.0]})
            for t in range(horizon)
        ])
    return episodes


class HistoryPolicy(nn.Module):
    def __init__(self, obs_dim, act_dim, window, hidden):
        super().__init__()
        self.encoder = nn.Linear(obs_dim, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, 2 * act_dim))

    def forward(self, obs):
        h, _ = self.rnn(F.elu(self.encoder(obs)))
        mean, log_std = self.head(h).chunk(2, -1)
        return mean, log_std.clamp(-4, 1)


class EpisodeBuffer:
    def __init__(self, episodes, window):
        self.episodes = episodes
        self.window = window

    def sample(self, batch_size):
        obs, act = [], []
        for _ in range(batch_size):
            ep = random.choice(self.episodes)
            s = random.randrange(len(ep) - self.window)
            chunk = ep[s:s + self.window]
            obs.append(np.stack([tr.obs for tr in chunk]))
            act.append(np.stack([tr.action for tr in chunk]))
        return torch.from_numpy(np.stack(obs)), torch.from_numpy(np.stack(act))


def update(policy, optimizer, obs, act, max_norm):
    mean, log_std = policy(obs)
    nll = (0.5 * ((act - mean) / log_std.exp()) ** 2 + log_std).sum(-1).mean()
    optimizer.zero_grad(set_to_none=True)
    nll.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    optimizer.step()
    return {"nll": nll.item(), "mae": (act - mean).abs().mean().item()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=160)
    parser.add_argument("--horizon", type=int, default=150)
    parser.add_argument("--obs-dim", type=int, default=24)
    parser.add_argument("--act-dim", type=int, default=6)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=9)
    args = parser.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    buffer = EpisodeBuffer(
        collect_episodes(args.episodes, args.horizon, args.obs_dim, args.act_dim, args.seed), args.window
    )
    policy = HistoryPolicy(args.obs_dim, args.act_dim, args.window, args.hidden)
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr, fused=True)
    recent = deque(maxlen=50)
    start = time.time()
    for i in range(1, args.updates + 1):
        obs, act = buffer.sample(args.batch_size)
        stats = update(policy, optimizer, obs, act, 10.0)
        recent.append(stats)
        del obs, act, stats
        if i % 8 == 0:
            gc.collect()
        if i % 50 == 0:
            nll = sum(s["nll"] for s in recent) / len(recent)
            mae = sum(s["mae"] for s in recent) / len(recent)
            print(f"update {i:4d} | nll {nll:+.3f} | mae {mae:.3f} | {i / (time.time() - start):.1f} upd/s", flush=True)


if __name__ == "__main__":
    main()
