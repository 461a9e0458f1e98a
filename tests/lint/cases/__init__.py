"""For each rule a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

from . import batch, dockerfiles, manifests, needs, scripts, settings, tasks
from .rows import QUEUED
from .texts import WARNED, change

CASES: dict[str, tuple[str, str]] = {**scripts.CASES, **dockerfiles.CASES, **batch.CASES, **manifests.CASES}
CASES |= tasks.CASES | settings.CASES | needs.CASES
CASES["unadmitted-job"] = (change(QUEUED, "queue-name: main", "queue-name: other"), QUEUED)

BESIDE = {"unhandled-signal": {"job.sbatch": WARNED}}
"""Files that lie beside the text, for the rules that look at several."""
SAVE_S = {"late-signal": 60.0}
"""How long a save takes, for the rules that need it."""
FILES = {"python": "train.py", "dockerfile": "Dockerfile", "sbatch": "job.sbatch", "kubernetes": "job.yaml"}
FILES |= {"skypilot": "a.sky.yaml", "dstack": "a.dstack.yml", "deepspeed": "ds.json", "accelerate": "accelerate.yaml"}
FILES |= {"lightning": "lightning.yaml"}
