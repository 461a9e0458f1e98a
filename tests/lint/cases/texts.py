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
loader = DataLoader(data, num_workers=2, pin_memory=True)
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
    LOOP, "loader = DataLoader(data,", "sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler,"
)
SAVED = STARTED + LOOP + "    torch.save(model.state_dict(), 'last.pt')\n"
KEPT = LOOP + "        total += loss\n"
EVALUATED = LOOP + "    validate(model, test_loader)\n\ndef validate(model, loader):\n    model.eval()\n"
DDP = "model = nn.parallel.DistributedDataParallel(model, find_unused_parameters={})\n"
WRAPPED = ACCUMULATED.replace("criterion = ", "model = nn.parallel.DistributedDataParallel(model)\ncriterion = ")
ASYNC = LOOP.replace("        loss =", "        x = x.to('cuda', non_blocking=True)\n        loss =")

WARNED = BATCH.format(nodes=1, more="#SBATCH --signal=USR1@120\nsrun python train.py")
"""A job that starts train.py and warns it."""
