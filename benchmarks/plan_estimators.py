"""ZeRO's table beside the estimators of DeepSpeed and Accelerate, and beside what DeepSpeed holds on two CPU ranks.

    .venv/bin/python benchmarks/plan_estimators.py [--frameworks .venv-frameworks] [--out FILE]

`make frameworks` makes their environment. A difference is written with the bytes that its reason explains; a
minute, no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from raw import ROOT, describe_commit, draw_raw

from hotloop.plan.memory import zero_memory
from hotloop.plan.workload_file import read_models

OUT = ROOT / "benchmarks" / "results" / "plan" / "estimators.json"
CHILD = ROOT / "benchmarks" / "plan_models" / "estimators.py"
CASES = (
    {"case": "7.5B on 64", "params": 7_500_000_000, "ranks": 64, "largest_layer_params": 67_108_864},
    {"case": "175B on 64", "params": 175_000_000_000, "ranks": 64, "largest_layer_params": 603_979_776},
    {"case": "t5-3b on 8 (DeepSpeed's documentation)", "params": 2_851_000_000, "ranks": 8,
     "largest_layer_params": 32_000_000},
    {"case": "1.5B on 1", "params": 1_500_000_000, "ranks": 1, "largest_layer_params": 80_000_000},
)  # fmt: skip


def compare(case: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of one case: what the tool says, what the table says, and why they differ."""
    params, ranks = case["params"], case["ranks"]
    mixed, full = (zero_memory(params, ranks, precision=name) for name in ("mixed", "fp32"))
    halves = found["float16"]

    def row(tool: str, stage: int, said: float, ours: float, explained: float, reason: str) -> dict[str, Any]:
        return {
            **case, "tool": tool, "stage": stage, "tool_bytes": said, "zero_bytes": ours,
            "explained_bytes": explained, "reason": reason,
        }  # fmt: skip

    return [
        row(
            "DeepSpeed estimate_zero2_model_states_mem_needs", 2, found["zero2"], mixed[2].total_bytes,
            4 * params / ranks, "counts float32 gradients, which exist during the optimizer's step only",
        ),
        row(
            "DeepSpeed estimate_zero3_model_states_mem_needs", 3, found["zero3"], mixed[3].total_bytes,
            2 * params / ranks + 4 * case["largest_layer_params"],
            "counts the largest module gathered, with its gradients, and of the step's 4 bytes a parameter 2",
        ),
        row(
            "Accelerate estimate_training_usage float32", 0, max(found["float32"].values()), full[0].total_bytes, 0, "",
        ),
        row(
            "Accelerate estimate_training_usage float16", 0, max(halves.values()), mixed[0].total_bytes,
            -8 * params, "states the largest of weights, gradients and optimizer, which are there together",
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frameworks", type=Path, default=ROOT / ".venv-frameworks")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    python = str(arguments.frameworks / "bin" / "python")
    words = [python, str(CHILD), "estimate", json.dumps(CASES)]
    answer = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    held = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in (1, 2, 3):
            out = Path(folder) / f"{stage}.json"
            subprocess.run([python, str(CHILD), "hold", str(stage), str(out)], capture_output=True, check=True)
            found = json.loads(out.read_text())
            zero = zero_memory(found["params"], found["ranks"])[stage]
            for number, step in enumerate(found["steps"]):
                sizes = {f"{moment}_bytes": sum(dtypes.values()) for moment, dtypes in step.items()}
                held.append({
                    "stage": stage, "step": number, "params": found["params"], "ranks": found["ranks"],
                    "zero_bytes": zero.total_bytes, **sizes, "dtypes": step,
                })  # fmt: skip
    rows = [row for case, found in zip(CASES, answer["rows"], strict=True) for row in compare(case, found)]
    content = {
        "benchmark": "plan_estimators",
        "machine": f"{platform.machine()}, Python {platform.python_version()}, CPU only",
        "versions": answer["versions"],
        "commit": describe_commit(),
        "date": datetime.date.today().isoformat(),
        "n": len(rows),
        "rows": rows,
        "counted": [
            {"model": "gpt2", "by": name, "params": params, "published": read_models()["gpt2"]["params"]}
            for name, params in answer["counted"].items()
        ],
        "held": held,
    }
    arguments.out.write_text(draw_raw(content))
    for one in rows:
        print(f"{one['tool']:50} {one['case']:40} {one['tool_bytes'] / 1e9:9.2f} {one['zero_bytes'] / 1e9:9.2f}")
    for one in held:
        moments = ("after_backward", "step", "between_steps")
        ratios = ", ".join(f"{name} {one[f'{name}_bytes'] / one['zero_bytes']:.3f}" for name in moments)
        print(f"stage {one['stage']}, step {one['step']}: held over the table's: {ratios}")


if __name__ == "__main__":
    main()
