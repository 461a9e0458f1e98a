import numpy as np
import torch


class Collector:
    """Runs the policy for `horizon` steps and returns flat tensors with advantages."""

    def __init__(self, env, policy, normaliser, cfg):
        self.env, self.policy, self.norm = env, policy, normaliser
        self.horizon, self.gamma, self.lam = cfg.rollout.horizon, cfg.ppo.gamma, cfg.ppo.lam
        self.raw = env.reset()

    def _prepare(self, raw):
        self.norm.update(raw)
        return torch.from_numpy(self.norm(raw))

    def collect(self):
        store = {k: [] for k in ("obs", "act", "logp", "val", "rew", "done")}
        for _ in range(self.horizon):
            obs = self._prepare(self.raw)
            act, logp, val = self.policy.act(obs)
            self.raw, rew, done = self.env.step(act.numpy())
            for k, v in zip(store, (obs, act, logp, val, torch.from_numpy(rew), torch.from_numpy(done))):
                store[k].append(v)
        with torch.inference_mode():
            last = self.policy.value(torch.from_numpy(self.norm(self.raw)))
        data = {k: torch.stack(v).clone() for k, v in store.items()}
        data["adv"] = self._advantages(data, last)
        data["ret"] = data["adv"] + data["val"]
        return {k: v.flatten(0, 1) for k, v in data.items()}

    def _advantages(self, data, last):
        rew, val = data["rew"].numpy(), data["val"].numpy()
        alive = 1.0 - data["done"].numpy().astype(np.float32)
        adv, run, nxt = np.zeros_like(rew), 0.0, last.numpy()
        for t in range(self.horizon - 1, -1, -1):
            delta = rew[t] + self.gamma * nxt * alive[t] - val[t]
            run = delta + self.gamma * self.lam * alive[t] * run
            adv[t], nxt = run, val[t]
        return torch.from_numpy(adv)
