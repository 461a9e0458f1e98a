"""The parts of a loader -> forecast batches per second by workers, beside what was measured in the same run.

Each round runs `hotloop bench loader` on both data sets of loader_controller.py (5 ms of waiting a sample; about 2 ms
of Python a sample): it measures the parts, and then times 0, 1, 2 and 4 workers in turns. The figure of a row is the
median over the rounds of forecast / measured - 1. Resumable: each round is kept in
benchmarks/results/loader_forecast.json.

    python benchmarks/loader_forecast.py [--rounds 5] [--fresh]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "loader_forecast.json"
CASES = {"waiting": "Waiting", "computing": "Computing"}
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from loader_controller import {name}
from torch.utils.data import DataLoader

def make():
    return DataLoader({name}(), batch_size=16)
"""


def run_round(case: str, budget_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "made.py").write_text(SCRIPT.format(folder=str(ROOT / "benchmarks"), name=CASES[case]))
        hotloop = Path(sys.executable).with_name("hotloop")
        words = ["bench", "loader", "made.py:make", "--workers", "0,1,2,4", "--budget", str(budget_s), "--quiet"]
        command = [str(hotloop), *words, "--python", sys.executable, "--json", "out.json"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        found = json.loads(Path(folder, "out.json").read_text())
    rows: list[dict[str, Any]] = found["tables"][0]
    names = ("workers", "batches_per_s", "forecast_batches_per_s", "forecast_off_ratio", "n")
    return [{name: row[name] for name in names} | {"parts": found["tables"][1][0]} for row in rows]


def describe_machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=12.0, help="seconds of one `hotloop bench loader`")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if RESULTS.exists() and not options.fresh:
        rows = json.loads(RESULTS.read_text())["rows"]
    for number in range(options.rounds):
        for case in CASES:
            if any((row["round"], row["case"]) == (number, case) for row in rows):
                continue
            load = os.getloadavg()[0]
            found = run_round(case, options.budget)
            rows += [{"round": number, "case": case, "load": load, **row} for row in found]
            head = {"date": date.today().isoformat(), "commit": describe_commit(), "machine": describe_machine()}
            RESULTS.write_text(draw_raw({**head, "rows": rows}))
    for case in CASES:
        for workers in (0, 1, 2, 4):
            mine = [row for row in rows if (row["case"], row["workers"]) == (case, workers)]
            offs = [row["forecast_off_ratio"] for row in mine]
            measured = statistics.median(row["batches_per_s"] for row in mine)
            forecast = statistics.median(row["forecast_batches_per_s"] for row in mine)
            print(
                f"{case:10} {workers} workers: {measured:6.1f} batches/s, forecast {forecast:6.1f}, off by "
                f"{statistics.median(offs):+.1%} (rounds {min(offs):+.0%} to {max(offs):+.0%}, n={len(mine)})"
            )


if __name__ == "__main__":
    main()
