# Message passing network for a synthetic molecular property (regression).
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


@dataclass
class Config:
    n_graphs: int = 3200
    batch_size: int = 64
    hidden: int = 96
    layers: int = 4
    node_types: int = 16
    epochs: int = 3
    lr: float = 1e-3
    seed: int = 11


class Molecule:
    __slots__ = ("z", "edges", "y")

    def __init__(self, z, edges, y):
        self.z, self.edges, self.y = z, edges, y


def build_molecules(cfg):
    rng = np.random.default_rng(cfg.seed)
    weight = rng.normal(size=cfg.node_types)
    out = []
    for _ in range(cfg.n_graphs):
        n = int(rng.integers(18, 42))
        z = rng.integers(0, cfg.node_types, n)
        parent = np.array([rng.integers(0, i) for i in range(1, n)])
        tree = np.stack([np.arange(1, n), parent])
        extra = rng.integers(0, n, (2, n))
        e = np.concatenate([tree, extra], axis=1)
        e = np.concatenate([e, e[::-1]], axis=1)
        y = (weight[z[e[0]]] * weight[z[e[1]]]).mean() + weight[z].mean()
        out.append(Molecule(torch.from_numpy(z), torch.from_numpy(e.copy()), float(y)))
    return out


def collate(mols):
    sizes = torch.tensor([len(mol.z) for mol in mols])
    n_edges = torch.tensor([mol.edges.shape[1] for mol in mols])
    offsets = torch.cumsum(sizes, 0) - sizes
    edges = torch.cat([mol.edges for mol in mols], dim=1)
    edges = edges + torch.repeat_interleave(offsets, n_edges)
    return (torch.cat([mol.z for mol in mols]), edges,
            torch.repeat_interleave(torch.arange(len(mols)), sizes),
            torch.tensor([mol.y for mol in mols]))


class MPLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.msg = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, d))
        self.upd = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU())
        self.norm = nn.LayerNorm(d)

    def forward(self, h, edge):
        src, dst = edge
        m = self.msg(torch.cat([h[src], h[dst]], dim=-1))
        agg = torch.zeros_like(h).index_add(0, dst, m)
        return self.norm(h + self.upd(torch.cat([h, agg], dim=-1)))


class MolNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.node_types, cfg.hidden)
        self.layers = nn.ModuleList(MPLayer(cfg.hidden) for _ in range(cfg.layers))
        self.readout = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU(),
                                     nn.Linear(cfg.hidden, 1))

    def forward(self, z, edge, batch, n_graphs):
        h = self.embed(z)
        for layer in self.layers:
            h = layer(h, edge)
        pooled = h.new_zeros(n_graphs, h.shape[1]).index_add(0, batch, h)
        count = torch.bincount(batch, minlength=n_graphs).clamp(min=1)
        return self.readout(pooled / count.unsqueeze(1)).squeeze(-1)


def run(cfg: Config):
    torch.manual_seed(cfg.seed)
    molecules = build_molecules(cfg)
    loader = DataLoader(molecules, batch_size=cfg.batch_size, shuffle=True,
                        collate_fn=collate, drop_last=True)
    net = MolNet(cfg)
    optim = torch.optim.Adam(net.parameters(), lr=cfg.lr, fused=True)
    for epoch in range(1, cfg.epochs + 1):
        t0, running = time.perf_counter(), 0.0
        for z, edge, batch, y in loader:
            pred = net(z, edge, batch, len(y))
            loss = nn.functional.smooth_l1_loss(pred, y)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            running += loss.item()
        print(f"[{epoch}/{cfg.epochs}] loss={running / len(loader):.4f} "
              f"time={time.perf_counter() - t0:.2f}s", flush=True)


if __name__ == "__main__":
    run(Config())
