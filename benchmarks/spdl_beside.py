"""SPDL's thread pipeline beside AdaptiveLoader's threads and torch's workers, on data sets that release the lock.

Every arm delivers the same batches in the same order, in a fresh process, in turn; figures are wall times of a whole
run (start and search included) and of its last half. SPDL gets as many threads as the case's best number; nothing in it
searches for one. docs/decisions/015-no-spdl-backend.md is what followed.

    python -m pip install --target FOLDER spdl-core
    python benchmarks/spdl_beside.py --spdl FOLDER [--rounds 3]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from loader_controller import BATCH, Computing, Waiting, Work, describe_machine
from raw import describe_commit, draw_raw
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, default_collate

RESULTS = Path(__file__).resolve().parent / "results" / "spdl_beside.json"
CASES: dict[str, dict[str, Any]] = {
    "waiting": {"data": Waiting, "size": 0, "batches": 600, "threads": 16},
    "waiting, with training": {"data": Waiting, "size": 512, "batches": 600, "threads": 16},
    "computing": {"data": Computing, "size": 0, "batches": 1000, "threads": 2},
    "computing, with training": {"data": Computing, "size": 512, "batches": 600, "threads": 2},
}
ARMS = ("spdl", "threads", "torch")


def spdl_batches(data: Any, threads: int) -> Iterator[Any]:
    """SPDL's own way: whole batches in a thread each, delivered in the sampler's order."""
    from spdl.pipeline import PipelineBuilder

    torch.empty((), dtype=torch.int64).random_()  # a DataLoader draws the seed of its workers before the order
    order = BatchSampler(RandomSampler(data), BATCH, drop_last=False)

    def make(indices: list[int]) -> Any:
        return default_collate([data[index] for index in indices])

    builder = PipelineBuilder().add_source(order)
    pipeline = builder.pipe(make, concurrency=threads, output_order="input").add_sink(2).build(num_threads=threads)
    with pipeline.auto_stop():
        yield from pipeline


def run_arm(case: str, arm: str) -> dict[str, Any]:
    from hotloop import AdaptiveLoader

    what = CASES[case]
    torch.manual_seed(1)
    data, work, count = what["data"](), Work(what["size"]), what["batches"]
    torch.manual_seed(7)
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    if arm == "spdl":
        batches: Any = spdl_batches(data, what["threads"])
    elif arm == "threads":
        batches = AdaptiveLoader(data, workers_kind="thread", **common)
    else:
        batches = DataLoader(data, num_workers=what["threads"], **common)
    digest = hashlib.sha256()
    begin_s = half_s = time.perf_counter()
    begin_cpu_s = time.process_time()
    for number, batch in enumerate(batches, 1):
        digest.update(batch.numpy().tobytes())
        work()
        if number == count // 2:
            half_s = time.perf_counter()
        if number == count:
            break
    end_s, cpu_s = time.perf_counter(), time.process_time() - begin_cpu_s
    if arm != "torch":
        batches.close()
    return {
        "wall_s": end_s - begin_s,
        "last_half_s": end_s - half_s,
        "process_cpu_s": cpu_s,
        "batches": digest.hexdigest()[:16],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spdl", type=Path, help="folder into which spdl-core was installed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arm", nargs=2, metavar=("CASE", "ARM"), help="run one arm and print it")
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(run_arm(*options.arm)))
        return
    rows = []
    environment = os.environ | {"PYTHONPATH": str(options.spdl)}
    for number in range(options.rounds):
        for case in CASES:
            for arm in ARMS:
                command = [sys.executable, __file__, "--arm", case, arm]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                rows.append(
                    {"round": number, "case": case, "arm": arm, "load": os.getloadavg()[0], **json.loads(done.stdout)}
                )
    version = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('spdl-core'))"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout.strip()
    head = {
        "date": date.today().isoformat(),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "spdl": version,
        "torch": torch.__version__,
    }
    RESULTS.write_text(draw_raw({**head, "rows": rows}))
    for case in CASES:
        for arm in ARMS:
            mine = [row for row in rows if row["case"] == case and row["arm"] == arm]
            whole, half = (statistics.median(row[key] for row in mine) for key in ("wall_s", "last_half_s"))
            print(f"{case}, {arm}: {whole:.2f} s, last half {half:.2f} s, batches {mine[0]['batches']}")


if __name__ == "__main__":
    main()
