"""A plan calibrated by one recorded run -> how near it comes to other configurations' runs.

    python benchmarks/plan_from_run.py [--rounds 3]

`hotloop run` records benchmarks/samples/train_gpt.py, one thread a rank, in its base configuration and with another
batch, depth, width and number of ranks, in turns. `hotloop plan` is calibrated by the base run of the same round alone
(`--measured`), with the device file `cpu`. Every row is kept in benchmarks/results/plan/from_run.json.
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
RESULTS = ROOT / "benchmarks" / "results" / "plan" / "from_run.json"
SCRIPT = ROOT / "benchmarks" / "samples" / "train_gpt.py"
HOTLOOP = [sys.executable, "-m", "hotloop"]
BASE = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 8192, "seq": 128, "batch": 4, "ranks": 1}
CONFIGURATIONS: dict[str, dict[str, int]] = {
    "base": BASE,
    "batch x 2": {**BASE, "batch": 8},
    "depth x 2": {**BASE, "layers": 8},
    "width x 2": {**BASE, "hidden": 512, "heads": 8},
    "2 ranks": {**BASE, "ranks": 2},
}


def write_plan(folder: Path, name: str, sizes: dict[str, int]) -> Path:
    model = {key: sizes[key] for key in ("layers", "hidden", "heads", "vocab", "seq")}
    lines = [
        "[model]",
        *(f"{key} = {value}" for key, value in model.items()),
        "bias = true",
        "learned_positions = true",
    ]
    lines += ["[run]", f"micro_batch = {sizes['batch']}", f"global_batch = {sizes['batch'] * sizes['ranks']}"]
    lines += ['precision = "fp32"', "[hardware]", 'gpu = "cpu"', f"count = {sizes['ranks']}"]
    path = folder / f"{name.replace(' ', '-')}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def record(folder: Path, name: str, sizes: dict[str, int]) -> tuple[Path, float]:
    """The run's folder and its steady step without input wait, in ns."""
    words = [f"--{key}={sizes[key]}" for key in ("layers", "hidden", "heads", "vocab", "seq", "batch")]
    launch = [sys.executable, str(SCRIPT)]
    if sizes["ranks"] > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launch = [*torchrun, "--nproc-per-node", str(sizes["ranks"]), str(SCRIPT)]
    place = folder / name.replace(" ", "-")
    place.mkdir()
    done = [*HOTLOOP, "run", "--no-probe", "--json", "report.json", "--", *launch, *words]
    subprocess.run(done, cwd=place, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    report = json.loads((place / "report.json").read_text())
    step = report["step"]["mean_ns"] - report["breakdown"]["input_wait"]["mean_ns"]
    return next(one for one in (place / ".hotloop").iterdir() if one.is_dir() and not one.is_symlink()), step


def plan(path: Path, measured: str) -> dict[str, Any]:
    done = subprocess.run(
        [*HOTLOOP, "plan", str(path), "--measured", measured, "--json", "-"], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            runs = {one: record(folder, one, sizes) for one, sizes in CONFIGURATIONS.items()}
            files = {one: write_plan(folder, one, sizes) for one, sizes in CONFIGURATIONS.items()}
            for one, (_, step_ns) in runs.items():
                forecast = plan(files[one], f"{files['base']}={runs['base'][0]}")["step"]
                row = {"round": number, "configuration": one, "measured_ns": step_ns, **forecast}
                rows.append({**row, "error_ratio": forecast["mid_ns"] / step_ns - 1, "load": os.getloadavg()[0]})
        head = {"date": date.today().isoformat(), "commit": describe_commit(), "n": number + 1}
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        RESULTS.write_text(draw_raw({**head, "machine": machine, "rows": rows}))
    for one in CONFIGURATIONS:
        errors = [row["error_ratio"] for row in rows if row["configuration"] == one]
        print(f"{one:10} {statistics.median(errors):+.1%} (rounds {min(errors):+.1%} to {max(errors):+.1%})")


if __name__ == "__main__":
    main()
