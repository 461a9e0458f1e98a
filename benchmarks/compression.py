"""What gradient compression costs, sends and wins between two ranks -> benchmarks/results/compression/.

    python benchmarks/compression.py steps --rate 100mbit      time a step and true bytes, every method side by side
    python benchmarks/compression.py runs                      20 runs of one method with many buckets on gloo
    python benchmarks/compression.py cost                      CPU time of top-k and int8 against torch.topk

Each part is kept in a file of its own, with its commit, date and the load of the machine. `steps` needs root: two
network namespaces with a shaped link (tests/zoo/shaped_link.py).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "zoo")]
from shaped_link import shaped_link  # noqa: E402

RANKS = ROOT / "benchmarks" / "compression_ranks.py"
RESULTS = ROOT / "benchmarks" / "results" / "compression"
METHODS = ("plain", "bf16", "fp16", "int8", "topk")
COST_COUNT = 25_000_000


def time_steps(rate: str, rounds: int) -> dict[str, Any]:
    """Both ranks on one link; a row for every step of every method."""
    with tempfile.TemporaryDirectory() as folder, shaped_link(rate) as link:
        out = Path(folder) / "found.json"
        command = [sys.executable, str(RANKS), "steps", ",".join(METHODS), str(rounds), str(out)]
        variables = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        run = link.run(command, timeout_s=1500, environment=variables)
        if run.return_codes != (0, 0):
            raise SystemExit("\n".join(run.outputs))
        found: dict[str, Any] = json.loads(out.read_text())
    return {"rate": rate, "rounds": rounds, "summary": summarize(found["rows"]), **found}


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each method: the least and the median step, and both as a speed-up over plain DDP's."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    figures = {
        method: {
            "n": len(some),
            "step_min_s": min(row["step_ns"] for row in some) * 1e-9,
            "step_median_s": statistics.median(row["step_ns"] for row in some) * 1e-9,
            "cpu_median_s": statistics.median(row["cpu_ns"] for row in some) * 1e-9,
            "sent_median_bytes": statistics.median(row["sent_bytes"] for row in some),
        }
        for method, some in by_method.items()
    }
    plain = figures["plain"]
    return [
        {
            "method": method,
            **{key: round(value, 4) for key, value in one.items()},
            "speedup_of_min": round(plain["step_min_s"] / one["step_min_s"], 3),
            "speedup_of_median": round(plain["step_median_s"] / one["step_median_s"], 3),
            "sent_ratio": round(one["sent_median_bytes"] / plain["sent_median_bytes"], 4),
        }
        for method, one in figures.items()
    ]


def make_runs(method: str, count: int, steps: int) -> dict[str, Any]:
    """Short trainings of two ranks, one after the other; the small model's gradients fill many buckets."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            out = Path(folder) / f"{number}.json"
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            command = [sys.executable, *launcher, str(RANKS), "runs", method, str(steps), str(out)]
            variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
            found = json.loads(out.read_text()) if out.exists() else {}
            rows.append({"run": number, "exit_code": done.returncode, **found})
            print(rows[-1], flush=True)
    good = sum(row["exit_code"] == 0 and row.get("are_equal") is True for row in rows)
    return {"method": method, "steps": steps, "finished_with_equal_replicas": good, "count": count, "rows": rows}


def time_cost(repeats: int) -> dict[str, Any]:
    """CPU time of one thread, the arms in turn, on normal draws of 25 million float32 elements."""
    import torch

    from hotloop.apply.compression import make_hook
    from hotloop.apply.compression.selection import select_largest

    torch.set_num_threads(1)
    values = torch.randn(COST_COUNT, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(torch.zeros(5000, COST_COUNT // 5000))
    count = COST_COUNT // 100

    arms: dict[str, Callable[[torch.Tensor], Any]] = {
        "torch.topk": lambda given: given.abs().topk(count, sorted=False),
        "select_largest": lambda given: select_largest(given, count),
    }
    init_alone()
    for method in ("topk", "int8", "fp16", "bf16"):
        hook = make_hook(method)
        hook.names = {id(parameter): "weight"}
        arms[f"{method} hook"] = lambda given, hook=hook: hook.send(_Bucket(given, parameter)).wait()
    seen: dict[str, list[float]] = {name: [] for name in arms}
    given = torch.empty_like(values)
    for turn in range(repeats + 1):
        for name, call in arms.items():
            given.copy_(values)  # a hook changes its gradient
            begin = time.process_time_ns()
            call(given)
            if turn:
                seen[name].append((time.process_time_ns() - begin) * 1e-9)
    torch.distributed.destroy_process_group()
    whole = min(seen["torch.topk"])
    rows = [
        {
            "arm": name,
            "min_s": round(min(times), 4),
            "median_s": round(statistics.median(times), 4),
            "of_torch_topk_ratio": round(min(times) / whole, 4),
            "n": len(times),
        }
        for name, times in seen.items()
    ]
    return {"elements": COST_COUNT, "rows": rows}


def init_alone() -> None:
    """A group of one rank: what a hook computes, and next to nothing on the wire."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())


class _Bucket:
    """A bucket of one parameter, as DDP gives it to a hook."""

    def __init__(self, gradient: Any, parameter: Any) -> None:
        self._gradient, self._parameter = gradient, parameter

    def index(self) -> int:
        return 0

    def buffer(self) -> Any:
        return self._gradient

    def parameters(self) -> list[Any]:
        return [self._parameter]

    def is_last(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("steps", "runs", "cost"))
    parser.add_argument("--rate", default="100mbit", help="of `steps`: 100mbit, 1gbit, none (default: 100mbit)")
    parser.add_argument("--count", type=int, help="rounds of `steps` (6), runs (20), repeats of `cost` (5)")
    parser.add_argument("--method", default="int8", help="of `runs` (default: int8)")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if options.part == "steps":
        name, found = f"steps-{options.rate}", time_steps(options.rate, options.count or 6)
    elif options.part == "runs":
        name, found = f"runs-{options.method}", make_runs(options.method, options.count or 20, 30)
    else:
        name, found = "cost", time_cost(options.count or 5)
    import torch

    head = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": describe_commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "load_before": round(load, 2),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(draw_raw({**head, **found}))
    print(json.dumps({key: value for key, value in found.items() if key != "rows" or name == "cost"}, indent=1))


if __name__ == "__main__":
    main()
