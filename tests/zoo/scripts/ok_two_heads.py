"""Two tasks on one trunk, one backward."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(160, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU())
        self.kind = nn.Linear(640, 6)
        self.size = nn.Linear(640, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.size(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(16384, 160)
    data = TensorDataset(x, x[:, :6].argmax(1), x.norm(dim=1, keepdim=True))
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 320, drop_last=True))
    model = TwoHeads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    right = torch.zeros(())
    step = 0
    while step < args.steps:
        for a, kind, size in loader:
            logits, guess = model(a)
            loss = F.cross_entropy(logits, kind) + 0.1 * F.mse_loss(guess, size)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.detach().argmax(1) == kind).float().mean()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.4f} accuracy {(right / step).item():.3f}")


if __name__ == "__main__":
    main()
