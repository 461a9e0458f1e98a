import torch
from torch import nn
import torch.nn.functional as F


class SageConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.own = nn.Linear(cin, cout)
        self.nbr = nn.Linear(cin, cout, bias=False)
        self.pool = nn.Linear(cin, cin)

    def forward(self, x, nbrs):
        h = F.relu(self.pool(nbrs)).view(x.shape[0], -1, nbrs.shape[-1]).mean(1)
        return self.own(x) + self.nbr(h)


class Sage(nn.Module):
    def __init__(self, cin, hidden, classes):
        super().__init__()
        self.conv1 = SageConv(cin, hidden)
        self.conv2 = SageConv(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, feats, layers):
        x = [feats[ids] for ids in layers]
        h0 = F.relu(self.conv1(x[0], x[1]))
        h1 = F.relu(self.conv1(x[1], x[2]))
        return self.out(F.relu(self.conv2(h0, h1)))
