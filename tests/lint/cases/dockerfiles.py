"""For each rule of Dockerfiles a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

CASES: dict[str, tuple[str, str]] = {
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
}
