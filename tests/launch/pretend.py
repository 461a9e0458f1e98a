"""A torchrun and a training in plain Python, so that signals are tested without torch, in tenths of a second.

    pretend.py torchrun WORDS...       starts PET_NPROC_PER_NODE ranks of this file with LOCAL_RANK, as torchrun does
    (a rank) FOLDER STEPS WORDS...     counts steps; a worker beside it ends by SIGTERM, as a DataLoader's does

A rank writes its words to FOLDER/words.RANK, its step to FOLDER/step.RANK when it is asked to stop, and
FOLDER/done.RANK at the end. It fails when its worker has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def run_ranks(words: list[str]) -> int:
    each, node = int(os.environ["PET_NPROC_PER_NODE"]), int(os.environ["PET_NODE_RANK"])
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, "LOCAL_RANK": str(local), "RANK": str(node * each + local)},
            start_new_session=True,
        )
        for local in range(each)
    ]
    signal.signal(signal.SIGTERM, lambda *_: [os.killpg(rank.pid, signal.SIGTERM) for rank in ranks])
    return max(rank.wait() != 0 for rank in ranks)


def train(folder: Path, steps: int, words: list[str]) -> int:
    rank, asked = os.environ["RANK"], []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (folder / f"words.{rank}").write_text(json.dumps(words))
    kept = folder / f"step.{rank}"
    step = int(kept.read_text()) if kept.exists() else 0
    (folder / f"started.{rank}").write_text(str(step))
    try:
        while step < steps:
            time.sleep(0.05)
            step += 1
            if worker.poll() is not None:
                print("DataLoader worker is killed by signal", flush=True)
                return 1
            if asked:
                kept.write_text(str(step))
                return 0
        (folder / f"done.{rank}").write_text(str(step))
        return 0
    finally:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        sys.exit(run_ranks(sys.argv[2:]))
    sys.exit(train(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
