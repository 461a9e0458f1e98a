import torch
import torch.nn.functional as F


class PPO:
    def __init__(self, policy, cfg):
        self.policy, self.cfg = policy, cfg.ppo
        self.opt = torch.optim.Adam(policy.parameters(), lr=cfg.ppo.lr, eps=1e-5, fused=True)
        self.updates_done = 0

    def _loss(self, b):
        d = self.policy.dist(b["obs"])
        ratio = (d.log_prob(b["act"]).sum(-1) - b["logp"]).exp()
        adv = (b["adv"] - b["adv"].mean()) / (b["adv"].std() + 1e-8)
        clipped = ratio.clamp(1 - self.cfg.clip, 1 + self.cfg.clip)
        pi = -torch.min(ratio * adv, clipped * adv).mean()
        vf = F.mse_loss(self.policy.value(b["obs"]), b["ret"])
        return pi + 0.5 * vf - self.cfg.entropy * d.entropy().sum(-1).mean()

    def learn(self, data):
        total = 0.0
        for _ in range(self.cfg.epochs):
            order = torch.randperm(len(data["obs"]))
            for idx in order.chunk(self.cfg.minibatches):
                loss = self._loss({k: v[idx] for k, v in data.items()})
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.opt.step()
                self.updates_done += 1
                total += loss.detach()
        return total / (self.cfg.epochs * self.cfg.minibatches)
