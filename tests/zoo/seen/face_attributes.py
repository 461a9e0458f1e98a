"""Several attribute heads on one convolutional trunk."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

ATTRS = ["glasses", "smile", "age", "pose", "hair"]


class Trunk(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, stride=2, padding=1), nn.BatchNorm2d(2 * w), nn.ReLU(),
            nn.Conv2d(2 * w, 2 * w, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.width = 2 * w * 16

    def forward(self, x):
        return self.net(x)


class Attributes(nn.Module):
    def __init__(self, w, heads, head_width):
        super().__init__()
        self.trunk = Trunk(w)
        self.heads = nn.ModuleDict({
            a: nn.Sequential(nn.Linear(self.trunk.width, head_width), nn.ReLU(), nn.Linear(head_width, 4))
            for a in ATTRS[:heads]})

    def forward(self, x):
        z = self.trunk(x)
        return {a: h(z) for a, h in self.heads.items()}


def update(model, opt, x, targets, combined, main_only=False):
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        losses = [F.cross_entropy(out[a], targets[a]) for a in out]
    if main_only:
        losses = losses[:1]
    if combined:
        sum(losses).backward()
    else:
        # each attribute contributes its own gradient
        for loss in losses[:-1]:
            loss.backward(retain_graph=True)
        losses[-1].backward()
    opt.step()
    return [l.detach() for l in losses]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--level", type=int, default=2)
    p.add_argument("--fixed", action="store_true")
    p.add_argument("--steps", type=int, default=120)
    args = p.parse_args()
    torch.manual_seed(23)
    heads, aux_every = {1: (2, 4), 2: (2, 2), 3: (3, 1)}[args.level]  # auxiliary attributes every n-th step
    model = Attributes(16, heads, 64)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, fused=True)
    faces = torch.rand(512, 3, 40, 40)
    labels = {a: torch.randint(0, 4, (512,)) for a in ATTRS}
    for step in range(args.steps):
        i = torch.randint(0, 512, (24,))
        ls = update(model, opt, faces[i], {a: labels[a][i] for a in ATTRS}, args.fixed,
                    main_only=step % aux_every != 0)
        if step % 40 == 0:
            print(step, " ".join(f"{float(l):.3f}" for l in ls))


if __name__ == "__main__":
    main()
