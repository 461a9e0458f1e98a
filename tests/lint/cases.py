"""For each rule a text in which it finds something, and one that is near and in which it does not."""

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

CASES: dict[str, tuple[str, str]] = {
    # training scripts
    "unhandled-signal": (SAVED, SAVED + "import signal\nsignal.signal(signal.SIGUSR1, save)\n"),
    "missing-zero-grad": (change(LOOP, "        optimizer.zero_grad()\n", ""), LOOP),
    "zeroed-micro-batches": (
        change(ACCUMULATED, "        loss.backward()", "        optimizer.zero_grad()\n        loss.backward()"),
        ACCUMULATED,
    ),
    "uncleared-steps": (
        change(LOOP, "        optimizer.zero_grad()\n", "        if i % 4 == 0:\n            optimizer.zero_grad()\n"),
        ACCUMULATED,
    ),
    "undivided-accumulation": (ACCUMULATED, change(ACCUMULATED, "(model(x), y)", "(model(x), y) / accum_steps")),
    "sampler-without-set-epoch": (
        SAMPLED,
        change(SAMPLED, "    for i,", "    sampler.set_epoch(epoch)\n    for i,"),
    ),
    "save-on-every-rank": (SAVED, change(SAVED, "    torch.save", "    if dist.get_rank() == 0: torch.save")),
    "loader-per-step": (
        change(LOOP, "        loss =", "        z = next(iter(loader))\n        loss ="),
        change(LOOP, "        loss =", "        z = next(stream)\n        loss ="),
    ),
    "workerless-loader": (change(LOOP, "num_workers=2, ", ""), LOOP),
    "item-each-step": (
        LOOP + "        losses.append(loss.item())\n",
        LOOP + "        if i % 10 == 0: losses.append(loss.item())\n",
    ),
    "print-each-step": (LOOP + "        print(i)\n", LOOP + "    print(epoch)\n"),
    "kept-graph": (KEPT, change(KEPT, "+= loss", "+= loss.detach()")),
    "forced-wait-each-step": (LOOP + "        torch.cuda.empty_cache()\n", LOOP + "    torch.cuda.empty_cache()\n"),
    "accumulation-without-no-sync": (WRAPPED, WRAPPED + "# with model.no_sync()\n"),
    "useless-non-blocking": (change(ASYNC, ", pin_memory=True", ""), ASYNC),
    "uncatchable-signal": (
        "import signal\nsignal.signal(signal.SIGKILL, save)\n",
        "import signal\nsignal.signal(signal.SIGTERM, save)\n",
    ),
    "unused-parameter-search": (LOOP + DDP.format(True), LOOP + DDP.format(False)),
    "gradients-in-validation": (VALIDATED, change(VALIDATED, "def v", "@torch.no_grad()\ndef v")),
    "eval-mode-kept": (EVALUATED, change(EVALUATED, "    for i,", "    model.train()\n    for i,")),
    "clipped-scaled-gradients": (
        CLIPPED,
        change(CLIPPED, "        torch.nn.utils", "        scaler.unscale_(optimizer)\n        torch.nn.utils"),
    ),
    "clip-after-step": (
        LOOP + "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        change(LOOP, "        optimizer.step()", "        nn.utils.clip_grad_norm_(p, 1.0)\n        optimizer.step()"),
    ),
    # Dockerfiles
    "source-before-install": (
        "FROM a\nCOPY . /app\nRUN pip install -r requirements.txt\n",
        "FROM a\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\nCOPY . /app\n",
    ),
    "unfiltered-context": ("FROM a\nCOPY . /app\n", "FROM a\nCOPY --from=b . /app\n"),
    "defeated-cache-mount": (
        "FROM a\nRUN --mount=type=cache,target=/root/.cache/pip pip install --no-cache-dir torch\n",
        "FROM a\nRUN --mount=type=cache,target=/root/.cache/pip pip install torch\n",
    ),
    "uncached-install": (
        "FROM a\nRUN pip install torch\n",
        "FROM a\nRUN --mount=type=cache,target=/root/.cache/pip pip install torch\n",
    ),
    "development-image": (
        "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\nRUN pip install torch\n",
        "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04 AS b\nRUN make\nFROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\n",
    ),
    "torch-twice": (
        "FROM pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime\nRUN pip install torch==2.3.0\n",
        "FROM pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime\nRUN pip install torch==2.3.0 torchmetrics==1.0\n",
    ),
    "stale-package-lists": (
        "FROM a\nRUN apt-get update\nRUN apt-get install -y git\n",
        "FROM a\nRUN apt-get update && apt-get install -y git\n",
    ),
    "shell-as-first-process": (
        "FROM a\nCMD source env.sh && python train.py\n",
        "FROM a\nCMD source env.sh && exec python train.py\n",
    ),
    # batch scripts
    "ignored-sbatch-line": (
        BATCH.format(nodes=1, more="set -e\n#SBATCH --time=1:00:00"),
        BATCH.format(nodes=1, more="cat > job.sh <<EOF\n#SBATCH --time=1:00:00\nEOF"),
    ),
    "unexpanded-variable": (
        BATCH.format(nodes=1, more="#SBATCH --output=$HOME/%j.out"),
        BATCH.format(nodes=1, more="#SBATCH --output=logs/%j.out # $HOME"),
    ),
    "launcher-per-task": (
        BATCH.format(nodes=2, more="#SBATCH --ntasks-per-node=8\nsrun \\\n  torchrun --nproc-per-node 8 train.py"),
        BATCH.format(nodes=2, more="#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc-per-node 8 train.py"),
    ),
    "launch-on-one-node": (
        BATCH.format(nodes=2, more="torchrun --nproc-per-node 8 train.py"),
        BATCH.format(nodes=2, more="srun torchrun --nproc-per-node 8 train.py"),
    ),
    "loopback-master": (
        BATCH.format(nodes=2, more="export MASTER_ADDR=localhost\nsrun python train.py"),
        BATCH.format(nodes=1, more="export MASTER_ADDR=localhost\nsrun python train.py"),
    ),
    "undelivered-signal": (
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=USR1@120\nsrun python train.py"),
    ),
    "trap-behind-foreground": (
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\ntrap 'touch stop' USR1\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\ntrap 'touch stop' USR1\nsrun python train.py &\nwait"),
    ),
    "late-signal": (
        BATCH.format(nodes=1, more="#SBATCH --signal=TERM@30\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=TERM@300\nsrun python train.py"),
    ),
    "one-core-per-task": (
        "#!/bin/bash\n#SBATCH --gres=gpu:2\npython train.py\n",
        "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH -c 8\npython train.py\n",
    ),
    "cores-not-passed-on": (
        BATCH.format(nodes=1, more="srun python train.py"),
        BATCH.format(nodes=1, more="export SRUN_CPUS_PER_TASK=8\nsrun python train.py"),
    ),
    "refused-option": (
        BATCH.format(nodes=1, more="#SBATCH --cpu-per-task=4"),
        BATCH.format(nodes=1, more="#SBATCH --job=a -N1 -n 4 --container-image=a --tres-per-task=cpu:1 # a comment"),
    ),
    # manifests
    "unknown-field": (
        "apiVersion: batch/v1\nkind: Job\nspec:\n  restartPolicy: Never\n  template: {spec: {containers: []}}\n",
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template: {spec: {containers: [], restartPolicy: Never}}\n",
    ),
    "fractional-gpu": (
        pod(container="resources: {limits: {nvidia.com/gpu: 0.25}}"),
        pod(container="resources: {limits: {nvidia.com/gpu: 1, cpu: 0.25}}"),
    ),
    "gpu-without-limit": (
        pod(container="resources: {requests: {nvidia.com/gpu: 1}}"),
        pod(container="resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 1}}"),
    ),
    "gpu-as-resource-metric": (
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n"
        "    - type: Resource\n      resource: {name: nvidia.com/gpu}\n",
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n"
        "    - type: Resource\n      resource: {name: cpu}\n",
    ),
    "small-shared-memory": (
        pod(container="resources: {limits: {nvidia.com/gpu: 8}}"),
        pod(container="resources: {limits: {nvidia.com/gpu: 8}}\nvolumeMounts: [{name: shm, mountPath: /dev/shm}]"),
    ),
    "shared-memory-on-disk": (
        pod(container="volumeMounts: [{name: shm, mountPath: /dev/shm}]", spec="volumes: [{name: shm, emptyDir: {}}]"),
        pod(
            container="volumeMounts: [{name: shm, mountPath: /dev/shm}]",
            spec="volumes: [{name: shm, emptyDir: {medium: Memory}}]",
        ),
    ),
    "short-grace": (
        pod(container="lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 60']}}}"),
        pod(
            container="lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 60']}}}",
            spec="terminationGracePeriodSeconds: 240",
        ),
    ),
    "reserved-variable": (
        pod("TrainJob", container="env: [{name: PET_NNODES, value: '2'}]", version="trainer.kubeflow.org/v1alpha1"),
        pod("PyTorchJob", container="env: [{name: PET_NNODES, value: '2'}]"),
    ),
    "job-restart-policy": (
        pod("Job", version="batch/v1"),
        pod("Job", version="batch/v1", spec="restartPolicy: Never"),
    ),
    "spot-without-toleration": (
        pod(spec="nodeSelector: {kubernetes.azure.com/scalesetpriority: spot}"),
        pod(
            spec="nodeSelector: {kubernetes.azure.com/scalesetpriority: spot}\n"
            "tolerations: [{key: kubernetes.azure.com/scalesetpriority, operator: Exists}]"
        ),
    ),
}
BESIDE = {"unhandled-signal": {"job.sbatch": WARNED}}
"""Files that lie beside the text, for the rules that look at several."""
SAVE_S = {"late-signal": 60.0}
"""How long a save takes, for the rules that need it."""
FILES = {"python": "train.py", "dockerfile": "Dockerfile", "sbatch": "job.sbatch", "kubernetes": "job.yaml"}
