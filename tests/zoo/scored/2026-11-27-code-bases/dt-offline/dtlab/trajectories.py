"""Logged episodes of a noisy linear controller, kept as padded tensors."""
import torch


class EpisodeStore:
    def __init__(self, c):
        g = torch.Generator().manual_seed(c.seed)
        n, t, ds, da = c.episodes, c.episode_len, c.state_dim, c.act_dim
        drift = torch.linalg.qr(torch.randn(ds, ds, generator=g))[0] * 0.97
        push = 0.3 * torch.randn(da, ds, generator=g)
        gain = 0.4 * torch.randn(ds, da, generator=g)
        skill = torch.rand(n, 1, generator=g)
        s = torch.randn(n, ds, generator=g)
        states, acts, rews = [], [], []
        for _ in range(t):
            a = torch.tanh(s @ gain) * skill + (1 - skill) * torch.randn(n, da, generator=g)
            states.append(s)
            acts.append(a)
            rews.append(-s.square().mean(1) - 0.05 * a.square().mean(1))
            s = s @ drift + a @ push + 0.02 * torch.randn(n, ds, generator=g)
        self.states = torch.stack(states, 1)
        self.states = (self.states - self.states.mean((0, 1))) / (self.states.std((0, 1)) + 1e-6)
        self.actions = torch.stack(acts, 1)
        rewards = torch.stack(rews, 1)
        self.togo = rewards.flip(1).cumsum(1).flip(1) / t
        self.quality = rewards.sum(1)


class WindowSampler:
    """Better episodes are drawn more often; windows start anywhere."""

    def __init__(self, store, c):
        self.store, self.c = store, c
        self.gen = torch.Generator().manual_seed(c.seed + 1)
        rank = store.quality.argsort().argsort().float() + 1
        self.prob = rank / rank.sum()
        self.span = torch.arange(c.context)

    def next(self):
        c, st = self.c, self.store
        ep = torch.multinomial(self.prob, c.batch, replacement=True, generator=self.gen)
        start = torch.randint(c.episode_len - c.context + 1, (c.batch,), generator=self.gen)
        at = start[:, None] + self.span
        row = ep[:, None]
        return st.togo[row, at][..., None], st.states[row, at], st.actions[row, at], at
