import torch.nn as nn


class Residual(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(c, c, 5, padding=2 * dilation, dilation=dilation, bias=False), nn.BatchNorm1d(c), nn.ReLU(),
            nn.Conv1d(c, c, 1, bias=False), nn.BatchNorm1d(c),
        )
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(x + self.body(x))


class Spotter(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(c.bands, c.channels, 5, padding=2), nn.ReLU())
        self.blocks = nn.Sequential(*[Residual(c.channels, 2 ** (i % 3)) for i in range(c.blocks)])
        self.head = nn.Linear(c.channels, c.keywords)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(-1))
