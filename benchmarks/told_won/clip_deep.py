"""A deep residual network that clips in its loop, one .item() a tensor; --mended: clip_grad_norm_."""

import argparse

import torch
from torch import nn


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(48, 48) for _ in range(60)])

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    mended = parser.parse_args().mended
    torch.manual_seed(5)
    model = Deep()
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.01)
    data = torch.randn(1024, 48)
    for _ in range(400):
        x = data[torch.randint(0, 1024, (16,))]
        optimizer.zero_grad()
        loss = (model(x) - x.flip(1)).pow(2).mean()
        loss.backward()
        if mended:
            torch.nn.utils.clip_grad_norm_(weights, 0.5)
        else:
            total = 0.0
            for p in weights:
                g = p.grad
                n = g.norm(2)
                total += n.item() ** 2
            scale = 0.5 / (total**0.5 + 1e-6)
            if scale < 1:
                for p in weights:
                    p.grad.mul_(scale)
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
