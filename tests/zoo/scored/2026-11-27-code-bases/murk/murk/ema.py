import copy

import torch


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)
        self.src = list(model.parameters())
        self.dst = list(self.shadow.parameters())

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.dst, self.src, 1 - self.decay)
