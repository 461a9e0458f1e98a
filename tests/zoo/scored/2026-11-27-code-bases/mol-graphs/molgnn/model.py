from torch import nn

from .layers import LAYERS


class GraphRegressor(nn.Module):
    def __init__(self, cfg, kind="gin"):
        super().__init__()
        self.embed = nn.Linear(cfg.features, cfg.hidden)
        self.layers = nn.ModuleList(LAYERS[kind](cfg.hidden) for _ in range(cfg.layers))
        self.readout = nn.Sequential(nn.LayerNorm(cfg.hidden), nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(),
                                     nn.Linear(cfg.hidden, 1))

    def forward(self, adj, x):
        h = self.embed(x)
        for l in self.layers:
            h = l(h, adj)
        return self.readout(h.mean(1)).squeeze(1)
