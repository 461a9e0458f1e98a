import math
import random
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader

ELEMENTS = ["C", "N", "O", "F", "S", "Cl", "Br", "P"]


@dataclass
class Config:
    num_molecules: int = 2560
    batch_size: int = 64
    epochs: int = 4
    hidden: int = 112
    layers: int = 4
    rbf: int = 12
    cutoff: float = 5.0
    lr: float = 1e-3
    seed: int = 11


def random_molecule(rng):
    """A random chain with branches, 3-d coordinates and a made-up energy."""
    n = rng.randint(14, 28)
    atoms = [rng.choice(ELEMENTS) for _ in range(n)]
    pos = [(0.0, 0.0, 0.0)]
    bonds = []
    for i in range(1, n):
        j = max(0, i - rng.choice([1, 1, 1, 2, 3]))
        px, py, pz = pos[j]
        a, b = rng.uniform(0, 2 * math.pi), rng.uniform(-1, 1)
        s = math.sqrt(1 - b * b)
        r = rng.uniform(1.2, 1.6)
        pos.append((px + r * s * math.cos(a), py + r * s * math.sin(a), pz + r * b))
        bonds.append((j, i))
    energy = sum(ELEMENTS.index(a) for a in atoms) / n + 0.05 * pos[-1][0]
    # two-hop neighbours interact as well
    nbr = {k: set() for k in range(n)}
    for u, v in bonds:
        nbr[u].add(v)
        nbr[v].add(u)
    pairs = set(bonds)
    for u in range(n):
        for v in nbr[u]:
            for w in nbr[v]:
                if u < w:
                    pairs.add((u, w))
    return {"atoms": atoms, "pos": pos, "pairs": sorted(pairs), "energy": energy}


def tensorize(mol):
    """Done once per molecule when the data set is built."""
    pairs = torch.tensor(mol["pairs"]).t()
    pos = torch.tensor(mol["pos"])
    dist = (pos[pairs[0]] - pos[pairs[1]]).norm(dim=1)
    return {
        "z": torch.tensor([ELEMENTS.index(a) for a in mol["atoms"]]),
        "edge_index": torch.cat([pairs, pairs.flip(0)], 1),
        "dist": torch.cat([dist, dist]),
        "y": mol["energy"],
    }


class Collater:
    """Merges molecules to one big disconnected graph."""

    def __init__(self, cfg):
        self.centers = torch.linspace(0, cfg.cutoff, cfg.rbf)
        self.gamma = cfg.rbf / cfg.cutoff

    def __call__(self, mols):
        atoms = torch.tensor([len(m["z"]) for m in mols])
        edges = torch.tensor([len(m["dist"]) for m in mols])
        offset = torch.repeat_interleave(atoms.cumsum(0) - atoms, edges)
        dist = torch.cat([m["dist"] for m in mols])
        return {
            "z": torch.cat([m["z"] for m in mols]),
            "graph_id": torch.repeat_interleave(torch.arange(len(mols)), atoms),
            "edge_index": torch.cat([m["edge_index"] for m in mols], 1) + offset,
            "edge_attr": torch.exp(-self.gamma * (dist[:, None] - self.centers) ** 2),
            "y": torch.tensor([m["y"] for m in mols]),
        }


class Interaction(nn.Module):
    def __init__(self, hidden, rbf):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(rbf, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.lin_in = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, h, edge_index, edge_attr):
        src, dst = edge_index
        msg = self.lin_in(h)[src] * self.filter(edge_attr)
        agg = torch.zeros_like(h).index_add_(0, dst, msg)
        return h + self.out(agg)


class SchNetLike(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(len(ELEMENTS), cfg.hidden)
        self.blocks = nn.ModuleList(Interaction(cfg.hidden, cfg.rbf) for _ in range(cfg.layers))
        self.readout = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden // 2), nn.SiLU(), nn.Linear(cfg.hidden // 2, 1))

    def forward(self, b):
        h = self.embed(b["z"])
        for block in self.blocks:
            h = block(h, b["edge_index"], b["edge_attr"])
        e = self.readout(h).squeeze(-1)
        n = b["y"].numel()
        total = torch.zeros(n).index_add_(0, b["graph_id"], e)
        count = torch.bincount(b["graph_id"], minlength=n)
        return total / count


def train(cfg):
    rng = random.Random(cfg.seed)
    torch.manual_seed(cfg.seed)
    molecules = [tensorize(random_molecule(rng)) for _ in range(cfg.num_molecules)]
    loader = DataLoader(molecules, batch_size=cfg.batch_size, shuffle=True, collate_fn=Collater(cfg), drop_last=True)
    model = SchNetLike(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, fused=True)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(loader)} batches per epoch")
    for epoch in range(cfg.epochs):
        start, mae = time.perf_counter(), 0.0
        for batch in loader:
            optimizer.zero_grad()
            pred = model(batch)
            loss = nn.functional.smooth_l1_loss(pred, batch["y"])
            loss.backward()
            optimizer.step()
            mae += (pred.detach() - batch["y"]).abs().mean()
        print(f"epoch {epoch + 1:2d} | mae {mae.item() / len(loader):.4f} | {time.perf_counter() - start:.2f}s", flush=True)


if __name__ == "__main__":
    train(Config())
