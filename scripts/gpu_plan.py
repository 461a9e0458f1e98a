"""Stored memory predictions beside torch.cuda.max_memory_allocated, on a machine with a CUDA device.

The predictions (benchmarks/results/plan/modules_cuda.json, with their date) were made on a torch without CUDA, by
`python benchmarks/plan_modules.py cuda`. Torch's counter has the work space of cuBLAS, which each row adds as a plan
does; the driver's context is in neither. Writes plan_modules_gpu.json to $OUT, or to benchmarks/results/plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "benchmarks" / "results" / "plan" / "modules_cuda.json"
REAL_STEP = ROOT / "benchmarks" / "plan_models" / "real_step.py"
CASE_S = 60


def main() -> int:
    import torch

    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    from passes import describe_commit, draw_raw, read_rows

    from hotloop.ahead.plan.module_trace import HOPPER_WORKSPACE_BYTES, WORKSPACE_BYTES

    if not torch.cuda.is_available():
        print("scripts/gpu_plan.py: torch sees no CUDA device here; nothing was compared", file=sys.stderr)
        return 0
    workspace = HOPPER_WORKSPACE_BYTES if torch.cuda.get_device_capability()[0] >= 9 else WORKSPACE_BYTES
    target = Path(os.environ.get("OUT") or STORED.parent) / "plan_modules_gpu.json"
    rows: list[dict[str, Any]] = []
    for stored in read_rows(json.loads(STORED.read_text())):
        names = {key: stored[key] for key in ("model", "precision", "optimizer", "batch")}
        words = [names["model"], names["precision"], names["optimizer"], "cuda", names["batch"]]
        ended = subprocess.run(
            [sys.executable, str(REAL_STEP), *words], capture_output=True, text=True, timeout=CASE_S, check=False
        )
        row = {**names, "predicted_on": stored["date"], "measured_on": date.today().isoformat()}
        if ended.returncode:
            row["failed"] = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        else:
            real = json.loads(ended.stdout.splitlines()[-1])
            predicted, measured = stored["predicted_bytes"] + workspace, real["peak_bytes"]
            row |= {"predicted_bytes": predicted, "measured_bytes": measured, "error_ratio": predicted / measured - 1}
            row |= {key: real[key] for key in ("reserved_bytes", "device", "torch")}
        rows.append(row)
        target.write_text(draw_raw({"date": date.today().isoformat(), "commit": describe_commit(), "rows": rows}))
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
