"""AdaptiveLoader against every static number of workers -> how near it comes to the best, found by exhaustive trial.

One round runs every arm of a case once, in turns, each in a fresh process: DataLoader with 0, 1, 2 and 4 workers (16
where loading waits) and AdaptiveLoader, all for the same number of batches. An arm's figure is the least wall time of a
whole run over the rounds (start and search included), and of its last half (what the search came to). Resumable: each
run is kept in benchmarks/results/loader_controller.json at once. About 5 minutes a round on 2 cores.

    python benchmarks/loader_controller.py [--rounds 3] [--fresh]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from raw import describe_commit, draw_raw
from torch.utils.data import DataLoader, Dataset

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "loader_controller.json"


class Waiting(Dataset[Any]):
    """A sample is 5 ms of waiting, as for storage."""

    def __len__(self) -> int:
        return 64_000

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return torch.full((64,), float(index))


class Computing(Dataset[Any]):
    """A sample is about 2 ms of Python on a core."""

    rounds = 12

    def __len__(self) -> int:
        return 64_000

    def __getitem__(self, index: int) -> Any:
        value = index.to_bytes(8, "little") * 12_000
        for _ in range(self.rounds):
            value = hashlib.sha256(value).digest() * 3_000
        return torch.frombuffer(bytearray(value[:256]), dtype=torch.float32).nan_to_num()


class Cheap(Dataset[Any]):
    """A sample is an index into a tensor: no worker can make it sooner than it takes to hand it over."""

    def __init__(self) -> None:
        self.rows = torch.randn(64_000, 64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Work:
    """What the training computes for a batch, on all cores (``size`` 0: nothing)."""

    def __init__(self, size: int) -> None:
        self.matrix = torch.randn(size, size) if size else None

    def __call__(self) -> None:
        if self.matrix is not None:
            torch.mm(self.matrix, self.matrix)


ALL = ("0", "1", "2", "4", "adaptive")
CASES: dict[str, dict[str, Any]] = {
    "waiting": {"data": Waiting, "size": 0, "batches": 400, "arms": ("0", "1", "2", "4", "16", "adaptive", "threads")},
    "waiting, with training": {"data": Waiting, "size": 512, "batches": 150, "arms": ALL},
    "computing": {"data": Computing, "size": 0, "batches": 1500, "arms": ALL},
    "computing, with training": {"data": Computing, "size": 512, "batches": 1000, "arms": ALL},
    "workers only hurt": {"data": Cheap, "size": 512, "batches": 12_000, "arms": ALL},
}
BATCH = 16


def run_arm(case: str, arm: str) -> dict[str, Any]:
    """Wall time of a run and of its last half, in s, and a digest of the batches in the order in which they came."""
    from hotloop import AdaptiveLoader

    what = CASES[case]
    torch.manual_seed(1)
    data, work, count = what["data"](), Work(what["size"]), what["batches"]
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    torch.manual_seed(7)
    loader: Any
    if arm in ("adaptive", "threads"):
        loader = AdaptiveLoader(data, workers_kind="process" if arm == "adaptive" else "thread", **common)
    else:
        loader = DataLoader(data, num_workers=int(arm), **common)
    digest = hashlib.sha256()
    begin_s = half_s = time.perf_counter()
    for number, batch in enumerate(loader, 1):
        digest.update(batch.numpy().tobytes())
        work()
        if number == count // 2:
            half_s = time.perf_counter()
        if number == count:
            break
    end_s = time.perf_counter()
    found = {
        "count": count,
        "wall_s": end_s - begin_s,
        "last_half_s": end_s - half_s,
        "batches": digest.hexdigest()[:16],
    }
    if arm in ("adaptive", "threads"):
        found["changes"] = [[one.batches_count, one.before, one.after] for one in loader.worker_changes]
        loader.close()
    return found


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = []
    for case, what in CASES.items():
        mine = [row for row in rows if row["case"] == case]
        least = {arm: min((row["wall_s"] for row in mine if row["arm"] == arm), default=None) for arm in what["arms"]}
        half = {
            arm: min((row["last_half_s"] for row in mine if row["arm"] == arm), default=None) for arm in what["arms"]
        }
        if None in least.values():
            continue
        static = [arm for arm in what["arms"] if arm.isdigit()]
        best = min(static, key=lambda arm: least[arm])
        count = what["batches"]
        for arm in ("adaptive", "threads"):
            if arm not in least:
                continue
            of_round = [
                min(row["wall_s"] for row in mine if row["round"] == number and row["arm"] in static)
                / next(row["wall_s"] for row in mine if row["round"] == number and row["arm"] == arm)
                for number in sorted({row["round"] for row in mine})
            ]
            table.append(
                {
                    "case": case,
                    "arm": arm,
                    "best_static": best,
                    "batches_per_s": {name: round(count / value, 1) for name, value in least.items()},
                    "of_best_ratio": round(least[best] / least[arm], 3),
                    "of_best_last_half_ratio": round(min(half[one] for one in static) / half[arm], 3),
                    "of_best_by_round_median_ratio": round(statistics.median(of_round), 3),
                    "of_none_ratio": round(least["0"] / least[arm], 3),
                    "same_batches": len({row["batches"] for row in mine}) == 1,
                    "n": len(of_round),
                }
            )
    return table


def describe_machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    parser.add_argument("--arm", nargs=2, metavar=("CASE", "ARM"), help="run one arm and print it")
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(run_arm(*options.arm)))
        return
    rows: list[dict[str, Any]] = []
    if RESULTS.exists() and not options.fresh:
        rows = json.loads(RESULTS.read_text())["rows"]
    for number in range(options.rounds):
        for case, what in CASES.items():
            for arm in what["arms"]:
                if any((row["round"], row["case"], row["arm"]) == (number, case, arm) for row in rows):
                    continue
                command = [sys.executable, __file__, "--arm", case, arm]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                load = os.getloadavg()[0]
                rows.append({"round": number, "case": case, "arm": arm, "load": load, **json.loads(done.stdout)})
                head = {"date": date.today().isoformat(), "commit": describe_commit(), "machine": describe_machine()}
                RESULTS.write_text(draw_raw({**head, "rows": rows}))
    for row in summarise(rows):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
