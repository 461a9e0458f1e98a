"""Zoo scripts that wait for batches, treated from outside by loader-workers -> how near they come to their twins.

Each round runs the script as it is, treated, and as its twin (--fixed), one after the other, under `hotloop run`; the
figure is the mean steady step in ns, the least of the rounds. Resumable: every run is kept in
benchmarks/results/loader_workers.json at once. About 1 minute a round on 2 quiet cores.

    python benchmarks/loader_workers.py [--rounds 5] [--fresh]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "loader_workers.json"
SCRIPTS = {"input_transform": 2, "input_collate": 2, "input_storage": 4, "input_workers": 4, "epoch_workers": 2}
"""Script and the workers of its twin."""


def run_once(script: str, workers: int, kind: str, steps: int) -> dict[str, object]:
    command = [sys.executable, str(ROOT / "tests" / "zoo" / "scripts" / f"{script}.py"), "--steps", str(steps)]
    command += ["--fixed"] if kind == "twin" else []
    with tempfile.TemporaryDirectory() as folder:
        strategy = Path(folder, "workers.toml")
        strategy.write_text(
            f'schema = "hotloop.strategy/1"\n[techniques.loader-workers]\nnum_workers = {workers}\n'
            "persistent_workers = true\nprefetch_factor = 2\n"
        )
        chosen = ["--strategy", str(strategy)] if kind == "treated" else []
        hotloop = Path(sys.executable).with_name("hotloop")
        result = subprocess.run(
            [hotloop, "run", "--no-probe", *chosen, "--json", "out.json", "--", *command],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        report = json.loads(Path(folder, "out.json").read_text())
        return {
            "mean_ns": report["step"]["mean_ns"],
            "median_ns": report["step"]["median_ns"],
            "loss": result.stdout.strip(),
            "strategy": [[one["status"], one["numerics"], one["detail"]] for one in report.get("strategy") or []],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept: dict[str, dict[str, object]] = {}
    if options.out.exists() and not options.fresh:
        kept = json.loads(options.out.read_text())
    for round_number in range(options.rounds):
        for script, workers in SCRIPTS.items():
            for kind in ("plain", "treated", "twin"):
                key = f"{script}/{kind}/{options.steps}/{round_number}"
                if key not in kept:
                    kept[key] = run_once(script, workers, kind, options.steps)
                    options.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{'script':18}{'plain ms':>10}{'treated ms':>12}{'twin ms':>10}{'of twin speed':>15}  numerics, loss")
    for script in SCRIPTS:
        runs = {
            kind: [kept[f"{script}/{kind}/{options.steps}/{i}"] for i in range(options.rounds)]
            for kind in ("plain", "treated", "twin")
        }
        least = {kind: min(float(str(one["mean_ns"])) for one in rows) / 1e6 for kind, rows in runs.items()}
        told = runs["treated"][0]["strategy"]
        numerics = told[0][1] if isinstance(told, list) and told else "?"
        same = {str(one["loss"]) for one in runs["plain"] + runs["treated"]}
        print(
            f"{script:18}{least['plain']:10.2f}{least['treated']:12.2f}{least['twin']:10.2f}"
            f"{least['twin'] / least['treated']:15.1%}  {numerics}, {' | '.join(sorted(same))}  (n={options.rounds})"
        )


if __name__ == "__main__":
    main()
