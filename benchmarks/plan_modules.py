"""Predicted memory of models next to what their real steps allocate (docs/plan-module.md).

`cpu` compares, for each model, precision and optimizer, the peak that fake tensors predict with the peak of
torch.profiler's memory events on the real step, each in a process of its own. `unseen` does the same with six models
that no rule of the trace was written after. `cuda` only predicts, for scripts/gpu_plan.py to compare on a machine with
a GPU.

    python benchmarks/plan_modules.py cpu|unseen|cuda [CASE ...]    what the table lacks, or these again
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import passes
from passes import ROOT

MODELS = ROOT / "benchmarks" / "plan_models"
PROBE = ROOT / "src" / "hotloop" / "measure" / "probe" / "start.py"
CASES = [
    (model, precision, optimizer)
    for precision, optimizer in (("fp32", "adamw"), ("bf16", "adamw"), ("fp32", "sgd"))
    for model in ("gpt", "bert", "resnet", "vit", "unet", "lstm", "moe", "t5")
]
UNSEEN_CASES = [
    (model, precision, "adamw")
    for precision in ("fp32", "bf16")
    for model in ("mixer", "convnext", "translator", "graphnet", "denoiser", "waves")
]
"""Models that no rule was written after."""
GPU_FACTOR = 16
"""A GPU's batch is so many times the CPU's: else the work space of cuBLAS is most of its memory."""


def predict(case: tuple[str, str, str], device: str, batch: str) -> dict[str, Any]:
    from hotloop.ahead.plan.module_trace import make_request, read_tensors

    model, precision, optimizer = case
    request = make_request(
        (str(MODELS / "models.py"), f"make_{model}"),
        read_tensors(batch) or [],
        device=device,
        precision=precision,
        optimizer=optimizer,
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


def predict_cuda(case: tuple[str, str, str], batch: str) -> dict[str, Any]:
    answer = predict(case, "cuda", batch)
    return {**read_peak(answer), "imitated": answer["imitated"], "torch": answer["torch"]}


def larger(batch: str) -> str:
    """The first size of every tensor, so many times."""
    return re.sub(r"\[(\d+)", lambda found: f"[{int(found[1]) * GPU_FACTOR}", batch)


WHAT: dict[str, tuple[str, Callable[[tuple[str, str, str], str], dict[str, Any]]]] = {
    "cpu": ("modules.json", compare_cpu),
    "unseen": ("modules_fresh.json", compare_cpu),
    "cuda": ("modules_cuda.json", predict_cuda),
}
"""The table of each, and what it compares."""


def measure(work: Callable[[tuple[str, str, str], str], dict[str, Any]], case: tuple[str, str, str]) -> dict[str, Any]:
    sys.path.insert(0, str(MODELS))
    import models

    batch = models.BATCHES[case[0]] if work is compare_cpu else larger(models.BATCHES[case[0]])
    return {**dict(zip(("model", "precision", "optimizer"), case, strict=True)), "batch": batch, **work(case, batch)}


NAMES = {"adamw": "AdamW", "sgd": "SGD"}


def draw_passage(table: Mapping[str, Any]) -> str:
    """A table of docs/plan-module.md: a line a model, a column a setting, and how large the errors are."""
    errors: dict[str, dict[str, str]] = {}
    for row in table["rows"]:
        setting = f"{row['precision']}, {NAMES[row['optimizer']]}"
        errors.setdefault(row["model"], {})[setting] = f"{row['error_ratio']:+.2%}"
    first, *others = next(iter(errors.values()))
    sizes = {
        row["model"]: f"{row['predicted_bytes'] / 2**20:.2f}, {row['measured_bytes'] / 2**20:.2f}"
        for row in reversed(table["rows"])
        if first == f"{row['precision']}, {NAMES[row['optimizer']]}"
    }
    heads = ["model", f"{first}: predicted, measured (MiB)", "error", *(f"{one}: error" for one in others)]
    off = [abs(row["error_ratio"]) for row in table["rows"]]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join((model, sizes[model], *errors[model].values()))} |" for model in errors]
    return "\n".join(lines) + (
        f"\n\nWorst {max(off):.2%}, mean of the absolute errors {sum(off) / len(off):.2%}, n = {len(off)} "
        f"(one real run a row); commit {table['commit']}."
    )


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in WHAT:
        raise SystemExit(__doc__)
    table, work = WHAT[arguments[0]]
    cases = UNSEEN_CASES if arguments[0] == "unseen" else CASES
    measures = {" ".join(case): partial(measure, work, case) for case in cases}
    return passes.measure(__doc__, f"plan/{table}", measures, arguments=arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
