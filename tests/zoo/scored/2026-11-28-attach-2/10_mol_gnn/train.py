import math
import signal, time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class MoleculeSampler:
    def __init__(self, seed, batch=16, atoms=4):
        self.g = torch.Generator().manual_seed(seed)
        self.batch, self.atoms = batch, atoms

    def draw(self):
        atoms = torch.randint(0, 12, (self.batch, self.atoms), generator=self.g)
        pos = torch.randn(self.batch, self.atoms, 3, generator=self.g) * 2
        target = atoms.float().mean(1) / 6 + pos.norm(dim=-1).mean(1) * 0.1
        return atoms, pos, target


def pair_features(atoms, pos):
    """Radial features of all pairs of atoms: distance, inverse, cosine cut-off, same kind."""
    kinds = atoms.tolist()
    xyz = pos.tolist()
    out = []
    for m in range(len(kinds)):
        mol = []
        for i, a in enumerate(xyz[m]):
            row = []
            for j, b in enumerate(xyz[m]):
                d = math.sqrt((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2)
                cut = 0.5 * (math.cos(math.pi * min(d, 5.0) / 5.0) + 1.0)
                row.append(torch.tensor([d, 1.0 / (d + 1.0), cut, float(kinds[m][i] == kinds[m][j])]))
            mol.append(torch.stack(row))
        out.append(torch.stack(mol))
    return torch.stack(out)


class Readout(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.atom = nn.Embedding(12, hidden)
        self.pair = nn.Linear(4, hidden)
        self.mlp = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, atoms, pairs):
        a = self.atom(atoms).mean(1)
        p = torch.relu(self.pair(pairs)).mean(dim=(1, 2))
        return self.mlp(torch.cat([a, p], -1)).squeeze(-1)


def run(model, opt, sampler, rank, warmup=60):
    step = 0
    while True:
        if step == warmup:
            sampler.atoms = 80
        atoms, pos, target = sampler.draw()
        pairs = pair_features(atoms, pos)
        loss = (model(atoms, pairs) - target).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0:
            if step == warmup + 2:
                print("\nREADY\n", end="", flush=True)
            if step % 10 == 0:
                print('step', step, 'mse', round(loss.item(), 4), flush=True)


if __name__ == '__main__':
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    r = dist.get_rank()
    net = DDP(Readout())
    run(net, torch.optim.Adam(net.parameters(), 1e-3), MoleculeSampler(r), r)
