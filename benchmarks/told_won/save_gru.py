"""A sequence model whose model and optimizer are saved every 8 steps; --mended: every 80."""

import argparse
from pathlib import Path

import torch
from torch import nn

STEPS = 240


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(48, 224, 2, batch_first=True)
        self.head = nn.Linear(224, 48)

    def forward(self, x):
        return self.head(self.gru(x)[0])


def keep(model, optimizer, folder, step):
    weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    torch.save(weights, folder / f"model{step}.pt")
    torch.save(optimizer.state_dict(), folder / f"optimizer{step}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    every = 80 if parser.parse_args().mended else 8
    torch.manual_seed(0)
    folder = Path("kept")
    folder.mkdir()
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    series = torch.randn(256, 20, 48)
    for step in range(STEPS):
        x = series[torch.randint(0, 256, (8,))]
        optimizer.zero_grad()
        loss = (model(x)[:, :-1] - x[:, 1:]).pow(2).mean()
        loss.backward()
        optimizer.step()
        if step % every == every - 1:
            keep(model, optimizer, folder, step)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
