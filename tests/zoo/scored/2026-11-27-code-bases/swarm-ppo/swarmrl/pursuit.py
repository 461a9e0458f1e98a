"""Pursuers chase a drifting target; all environments step together as numpy arrays."""
import numpy as np


class PursuitVecEnv:
    act_dim = 2

    def __init__(self, num_envs, episode_len, neighbours, seed):
        self.n, self.episode_len, self.k = num_envs, episode_len, neighbours
        self.obs_dim = 6 + 4 * neighbours
        self.rng = np.random.default_rng(seed)

    def _spawn(self, mask):
        m = int(mask.sum())
        self.pos[mask] = self.rng.uniform(-2, 2, (m, 2))
        self.vel[mask] = 0
        self.target[mask] = self.rng.uniform(-2, 2, (m, 2))
        self.obst[mask] = self.rng.uniform(-2, 2, (m, self.k, 2))
        self.drift[mask] = self.rng.normal(0, 0.3, (m, self.k, 2))
        self.age[mask] = self.rng.integers(0, self.episode_len // 2, m)

    def reset(self):
        n, k = self.n, self.k
        self.pos, self.vel = np.zeros((n, 2)), np.zeros((n, 2))
        self.target = np.zeros((n, 2))
        self.obst, self.drift = np.zeros((n, k, 2)), np.zeros((n, k, 2))
        self.age = np.zeros(n, dtype=np.int64)
        self._spawn(np.ones(n, dtype=bool))
        return self._observe()

    def _observe(self):
        rel = self.obst - self.pos[:, None]
        parts = [self.pos, self.vel, self.target - self.pos, rel.reshape(self.n, -1), self.drift.reshape(self.n, -1)]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def step(self, action):
        force = np.clip(action, -1, 1)
        self.vel = 0.9 * self.vel + 0.1 * force
        self.pos = np.clip(self.pos + self.vel, -3, 3)
        self.obst += 0.02 * self.drift
        gap = np.linalg.norm(self.target - self.pos, axis=1)
        near = np.linalg.norm(self.obst - self.pos[:, None], axis=2).min(axis=1)
        reward = -gap - 0.5 * (near < 0.3) - 0.01 * np.square(force).sum(axis=1)
        self.age += 1
        done = (self.age >= self.episode_len) | (gap < 0.1)
        reward = reward + 5.0 * (gap < 0.1)
        if done.any():
            self._spawn(done)
        return self._observe(), reward.astype(np.float32), done
