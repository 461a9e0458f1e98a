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


class Collater:
    """Merges molecules to one big disconnected graph."""

    def __init__(self, cfg):
        self.cutoff = cfg.cutoff
        self.centers = [cfg.cutoff * k / (cfg.rbf - 1) for k in range(cfg.rbf)]
        self.gamma = cfg.rbf / cfg.cutoff

    def __call__(self, mols):
        z, graph_id, src, dst, edge_attr, target = [], [], [], [], [], []
        offset = 0
        for g, mol in enumerate(mols):
            for a in mol["atoms"]:
                z.append(ELEMENTS.index(a))
                graph_id.append(g)
            for u, v in mol["pairs"]:
                d = math.dist(mol["pos"][u], mol["pos"][v])
                feat = [math.exp(-self.gamma * (d - c) ** 2) for c in self.centers]
                src += [u + offset, v + offset]
                dst += [v + offset, u + offset]
                edge_attr += [feat, feat]
            target.append(mol["energy"])
            offset += len(mol["atoms"])
        return {
            "z": torch.tensor(z),
            "graph_id": torch.tensor(graph_id),
            "edge_index": torch.tensor([src, dst]),
            "edge_attr": torch.tensor(edge_attr),
            "y": torch.tensor(target),
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
    molecules = [random_molecule(rng) for _ in range(cfg.num_molecules)]
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
