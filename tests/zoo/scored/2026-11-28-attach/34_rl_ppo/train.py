import argparse
import queue
import signal
import threading

import torch
import torch.nn as nn


class ActorCritic(nn.Module):
    def __init__(self, obs=6, act=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, act), nn.Linear(64, 1)

    def forward(self, s):
        h = self.trunk(s)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class EpisodeWriter:
    """Appends episode returns in a thread so that the rollout is never blocked."""

    def __init__(self):
        self.inbox = queue.Queue()
        self.closed = False
        self.lines = []
        self.thread = threading.Thread(target=self._drain, name="episode-writer")
        self.thread.start()

    def _drain(self):
        while not self.closed:
            item = self.inbox.get()
            self.lines.append(f"{item[0]},{item[1]:.4f}")

    def write(self, it, value):
        self.inbox.put((it, value))

    def close(self):
        self.closed = True
        self.thread.join()
        return len(self.lines)


def rollout(net, n=256):
    s = torch.randn(n, 6)
    with torch.no_grad():
        d, v = net(s)
        a = d.sample()
    r = s.gather(1, a[:, None]).squeeze(1)
    return s, a, d.log_prob(a), r, r - v


def ppo_update(net, opt, batch, clip=0.2, epochs=4):
    s, a, logp, ret, adv = batch
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(epochs):
        d, v = net(s)
        ratio = (d.log_prob(a) - logp).exp()
        obj = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv)
        loss = -obj.mean() + 0.5 * (v - ret).pow(2).mean() - 0.01 * d.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return ret.mean().item()


def phase(net, opt, iters, tag):
    writer = EpisodeWriter()
    for it in range(iters):
        value = ppo_update(net, opt, rollout(net))
        writer.write(it, value)
        if it % 10 == 0:
            print(f"{tag} iter {it} return {value:.3f}", flush=True)
    final = torch.stack([rollout(net)[3].mean() for _ in range(20)]).mean()
    print(f"{tag} final return {final:.3f}", flush=True)
    print("READY", flush=True)
    return writer.close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=60)
    ap.add_argument("--phases", type=int, default=5)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), 3e-4)
    for k in range(args.phases):
        print(phase(net, opt, args.iters, f"phase {k}"), "episodes", flush=True)


if __name__ == "__main__":
    main()
