"""Predicted memory of eight models beside what their real steps allocate.

`cpu` compares, for each model, precision and optimizer, the peak that fake tensors predict with the peak of
torch.profiler's memory events on the real step, each in a process of its own. `fresh` does the same with six models
that no rule of the trace was written after. `blocks` compares extrapolation from 2
and 3 blocks with the trace of all. `cuda` only predicts, for scripts/gpu_plan.py to compare on a machine with a GPU.
Resumable: every row is kept in benchmarks/results/plan as soon as it is there.

    python benchmarks/plan_modules.py cpu|fresh|blocks|cuda [--limit ROWS] [--fresh]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "plan"
MODELS = ROOT / "benchmarks" / "plan_models"
PROBE = ROOT / "src" / "hotloop" / "probe" / "start.py"
CASES = [
    (model, precision, optimizer)
    for precision, optimizer in (("fp32", "adamw"), ("bf16", "adamw"), ("fp32", "sgd"))
    for model in ("gpt", "bert", "resnet", "vit", "unet", "lstm", "moe", "t5")
]
FRESH_CASES = [
    (model, precision, "adamw")
    for precision in ("fp32", "bf16")
    for model in ("mixer", "convnext", "translator", "graphnet", "denoiser", "waves")
]
"""Models that no rule was written after."""
GPU_FACTOR = 16
"""A GPU's batch is so many times the CPU's: else the work space of cuBLAS is most of its memory."""


def predict(case: tuple[str, str, str], device: str, batch: str, blocks: str = "all") -> dict[str, Any]:
    from hotloop.plan.module_trace import make_request, read_tensors

    model, precision, optimizer = case
    request = make_request(
        (str(MODELS / "models.py"), f"make_{model}"),
        read_tensors(batch) or [],
        device=device,
        precision=precision,
        optimizer=optimizer,
        extrapolate=blocks == "extrapolate",
    )
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "in.json"), Path(folder, "out.json")
        given.write_text(json.dumps(request))
        subprocess.run([sys.executable, str(PROBE), "module_memory", str(given), str(result)], check=True, cwd=folder)
        answer: dict[str, Any] = json.loads(result.read_text())
    if "error" in answer:
        raise SystemExit(f"{model}: {answer['error']}")
    return answer


def read_peak(answer: dict[str, Any]) -> dict[str, Any]:
    peak = max(answer["peaks"], key=lambda one: one["total_bytes"])
    kept = {key: peak[key] for key in ("step", "phase", "position", "op", "by_category")}
    return {"predicted_bytes": peak["total_bytes"], **kept, "trace_s": round(answer["seconds"], 2)}


def compare_cpu(case: tuple[str, str, str], batch: str) -> dict[str, Any]:
    words = [sys.executable, str(MODELS / "real_step.py"), *case, "cpu", batch]
    real = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    row = read_peak(predict(case, "cpu", batch))
    measured = real.pop("peak_bytes")
    return {"measured_bytes": measured, "error_ratio": row["predicted_bytes"] / measured - 1, **row, **real}


def compare_blocks(case: tuple[str, str, str], batch: str) -> dict[str, Any]:
    whole = predict(case, "cuda", batch)
    if whole["block"] is None or whole["block"]["count"] < 4:
        return {"left_out": "no list of four or more equal blocks"}
    full, part = read_peak(whole), read_peak(predict(case, "cuda", batch, "extrapolate"))
    off = part["predicted_bytes"] / full["predicted_bytes"] - 1
    return {"blocks": whole["block"]["count"], "all_bytes": full["predicted_bytes"], "error_ratio": off, **part}


def predict_cuda(case: tuple[str, str, str], batch: str) -> dict[str, Any]:
    answer = predict(case, "cuda", batch)
    return {**read_peak(answer), "imitated": answer["imitated"], "torch": answer["torch"]}


def larger(batch: str) -> str:
    """The first size of every tensor, so many times."""
    return re.sub(r"\[(\d+)", lambda found: f"[{int(found[1]) * GPU_FACTOR}", batch)


WHAT: dict[str, Callable[[tuple[str, str, str], str], dict[str, Any]]] = {
    "cpu": compare_cpu,
    "fresh": compare_cpu,
    "blocks": compare_blocks,
    "cuda": predict_cuda,
}
FILES = {
    "cpu": "modules.json",
    "fresh": "modules_fresh.json",
    "blocks": "modules_blocks.json",
    "cuda": "modules_cuda.json",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--limit", type=int, help="new rows of this call")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    options = parser.parse_args()
    sys.path[:0] = [str(MODELS), str(ROOT / "src")]
    import models

    path = RESULTS / FILES[options.what]
    rows: list[dict[str, Any]] = []
    if path.exists() and not options.fresh:
        rows = json.loads(path.read_text())["rows"]
    done = {(row["model"], row["precision"], row["optimizer"]) for row in rows}
    cases = FRESH_CASES if options.what == "fresh" else CASES
    for case in [case for case in cases if case not in done][: options.limit]:
        batch = models.BATCHES[case[0]] if WHAT[options.what] is compare_cpu else larger(models.BATCHES[case[0]])
        found = WHAT[options.what](case, batch)
        names = dict(zip(("model", "precision", "optimizer"), case, strict=True))
        rows.append({**names, "batch": batch, "n": 1, "date": date.today().isoformat(), **found})
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {"date": date.today().isoformat(), "commit": describe_commit(), "machine": machine}
        path.write_text(draw_raw({**head, "rows": rows}))
    for row in rows:
        line = f"{row['model']:7} {row['precision']:5} {row['optimizer']:6}"
        if "predicted_bytes" not in row:
            print(f"{line} {row['left_out']}")
            continue
        line += f" predicted {row['predicted_bytes'] / 2**20:8.2f} MiB"
        beside = row.get("measured_bytes", row.get("all_bytes"))
        if beside is not None:
            line += f", {'measured' if 'measured_bytes' in row else 'all blocks'} {beside / 2**20:8.2f} MiB"
            line += f", error {row['error_ratio']:+.2%}"
        print(f"{line}, peak in {row['phase']} of step {row['step']}, trace {row['trace_s']} s")
    errors = [abs(row["error_ratio"]) for row in rows if "error_ratio" in row]
    if errors:
        print(f"{len(errors)} rows: worst {max(errors):.2%}, mean {sum(errors) / len(errors):.2%}")


if __name__ == "__main__":
    main()
