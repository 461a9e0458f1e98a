import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1 = nn.Conv1d(cin, cout, 5, stride, 2, bias=False)
        self.b1 = nn.BatchNorm1d(cout)
        self.c2 = nn.Conv1d(cout, cout, 5, 1, 2, bias=False)
        self.b2 = nn.BatchNorm1d(cout)
        self.skip = nn.Conv1d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.skip(x))


class WindowEncoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        blocks, cin = [], a.channels
        for s in range(a.stages):
            cout = a.width * min(2 ** s, 4)
            blocks.append(Residual(cin, cout, 2))
            cin = cout
        self.body = nn.Sequential(*blocks)
        self.out = nn.Linear(cin, a.embed)

    def forward(self, x):
        return F.normalize(self.out(self.body(x).mean(-1)), dim=1)
