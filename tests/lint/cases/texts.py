"""Texts that several cases begin with."""

from __future__ import annotations

from textwrap import dedent

LOOP = """
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler
model = nn.Linear(2, 2)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, shuffle=True, num_workers=2, pin_memory=True)
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
ACCUMULATED = LOOP.replace(
    "        optimizer.step()\n        optimizer.zero_grad()\n",
    "        if (i + 1) % accum_steps == 0:\n            optimizer.step()\n            optimizer.zero_grad()\n",
)
STARTED = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
BATCH = "#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --gpus-per-node=8\n#SBATCH --cpus-per-task=8\n{more}\n"


def change(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def pod(kind: str = "PyTorchJob", spec: str = "", container: str = "", version: str = "kubeflow.org/v1") -> str:
    """An object with one container; the two texts are indented by two and by six."""
    return (
        f"apiVersion: {version}\nkind: {kind}\nspec:\n  containers:\n    - name: main\n      image: torch\n"
        + "".join(f"      {line}\n" for line in dedent(container).strip().splitlines())
        + "".join(f"  {line}\n" for line in dedent(spec).strip().splitlines())
    )


BRANCHED = change(
    LOOP,
    "        loss.backward()\n        optimizer.step()\n",
    "        if amp:\n            scaler.scale(loss).backward()\n            scaler.step(optimizer)\n        else:\n"
    "            loss.backward()\n            nn.utils.clip_grad_norm_(p, 1.0)\n            optimizer.step()\n",
).replace("model = nn", "scaler = torch.amp.GradScaler()\nmodel = nn")
CLIPPED = change(
    LOOP,
    "        loss.backward()\n        optimizer.step()\n",
    "        scaler.scale(loss).backward()\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "        scaler.step(optimizer)\n        scaler.update()\n",
).replace("model = nn", "scaler = torch.amp.GradScaler()\nmodel = nn")
VALIDATED = """
import torch
def validate(model, loader):
    model.eval()
    for x, y in loader:
        total = model(x).sum()
"""
SAMPLED = change(
    LOOP,
    "loader = DataLoader(data, shuffle=True,",
    "sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler,",
)
SAVED = STARTED + LOOP + "    torch.save(model.state_dict(), 'last.pt')\n"
KEPT = LOOP + "        total += loss\n"
EVALUATED = LOOP + "    validate(model, test_loader)\n\ndef validate(model, loader):\n    model.eval()\n"
DDP = "model = nn.parallel.DistributedDataParallel(model, find_unused_parameters={})\n"
WRAPPED = ACCUMULATED.replace("criterion = ", "model = nn.parallel.DistributedDataParallel(model)\ncriterion = ")
ASYNC = LOOP.replace("        loss =", "        x = x.to('cuda', non_blocking=True)\n        loss =")

WARNED = BATCH.format(nodes=1, more="#SBATCH --signal=USR1@120\nsrun python train.py")
"""A job that starts train.py and warns it."""

SCALED = change(CLIPPED, "        torch.nn.utils", "        scaler.unscale_(optimizer)\n        torch.nn.utils")
SCHEDULED = (
    change(LOOP, "range(9)", "range(epochs)").replace(
        "loader =", "scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)\nloader ="
    )
    + "    scheduler.step()\n"
)
MODULE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)
    def forward(self, x):
        return self.drop(x)
"""
CHECKED = "with torch.no_grad():\n    for x, y in loader:\n        right = model(x).argmax(1) == y\n"
DATASET = """
import pandas as pd
from torch.utils.data import Dataset
class Rows(Dataset):
    def __getitem__(self, i):
        return {get}
"""
WRAP = "model = nn.parallel.DistributedDataParallel(model)\ncriterion = "
SHARED = change(CHECKED, "with", "loader = DataLoader(data, sampler=DistributedSampler(data))\nwith").replace(
    "loader =", "import torch\nfrom torch.utils.data import DataLoader, DistributedSampler\nloader =", 1
)
PREFIXED = """
import torch
def train():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    torch.save({}.state_dict(), "a.pt")
def test():
    model = torch.nn.Linear(2, 2)
    model.load_state_dict(torch.load("a.pt"))
"""
RESUMED = LOOP + "    torch.save({'m': model.state_dict()}, 'a.pt')\nc = torch.load('a.pt')\nstart = c['epoch'] + 1\n"
PARSED = "p = argparse.ArgumentParser()\np.add_argument('--lr')\nargs = p.parse_args()\n"
ACCELERATED = change(
    LOOP,
    "for epoch",
    "accelerator = accelerate.Accelerator()\n"
    "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\nfor epoch",
)
LIGHTNING = """
import lightning
class Net(lightning.LightningModule):
    def training_step(self, batch, i):
        loss = self(batch).mean()
        loss.backward()
"""

GAN = """
import torch
from torch import nn
G, D = nn.Linear(2, 2), nn.Linear(2, 1)
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for x in batches:
    fake = G(torch.randn(8, 2))
    loss = D(fake).mean() - D(x).mean()
    opt_d.zero_grad()
    loss.backward()
    opt_d.step()
    other = -D(fake).mean()
    opt_g.zero_grad()
    other.backward()
    opt_g.step()
"""
VALUES = """
import copy, torch
from torch import nn
from torch.nn import functional as F
q = nn.Linear(2, 4)
q_target = copy.deepcopy(q)
optimizer = torch.optim.Adam(q.parameters())
for x, action, reward in replay:
    with torch.no_grad():
        best = reward + q_target(x).max(dim=1).values
    loss = F.smooth_l1_loss(q(x).gather(1, action).squeeze(1), best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PADDED = """
import transformers
def collate(rows):
    batch = tokenizer.pad(rows, padding=True)
    batch["labels"] = batch["input_ids"].clone()
    return batch
"""
KEEPER = """
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        self.outs = []
    def training_step(self, batch, i):
        return self(batch).mean()
    def validation_step(self, batch, i):
        self.outs.append(self(batch))
    def on_validation_epoch_end(self):
        print(self.outs)
"""
GATHERED = change(
    LOOP,
    "        loss = criterion(model(x), y)",
    "        out = model(x)\n        parts = [torch.empty_like(out) for _ in range(8)]\n"
    "        torch.distributed.all_gather(parts, out)\n        loss = criterion(torch.cat(parts) @ out.T, y)",
)
