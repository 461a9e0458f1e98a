"""Thousands of synthetic ranks with known stragglers: processes and a Dask cluster that loses a worker, bit for bit.

    python benchmarks/many_ranks.py --ranks 4096 [--folder DIR]

Writes benchmarks/results/reach/many_ranks.json. A rank's file holds five steps, each a kernel and an all-reduce that
all ranks end together; a straggler's kernel takes longer, and its all-reduce the less.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hotloop.core.report import Report
from hotloop.pipeline.traces import report_traces

ROOT = Path(__file__).parents[1]
STEPS, STEP_US, COMPUTE_US, LATE_US = 5, 10_000, 6_000, 2_000


def write_rank(folder: Path, rank: int, ranks: int, is_late: bool) -> None:
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        start = step * STEP_US
        compute = COMPUTE_US + (LATE_US if is_late else 0)
        end = COMPUTE_US + LATE_US + 500
        events.append(_event("user_annotation", f"ProfilerStep#{step}", start, STEP_US - 10, 1))
        for at, (name, begin, length) in enumerate(
            (("gemm_kernel", 100, compute), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100 + compute, end - compute))
        ):
            correlation = 10 * step + at
            events.append(
                _event("cuda_runtime", "cudaLaunchKernel", start + 10 + 20 * at, 8, 1, correlation=correlation)
            )
            events.append(
                _event("kernel", name, start + begin, length, 7, pid=0, correlation=correlation, device=0, stream=7)
            )
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "traceEvents": events,
    }
    (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode(), 1))


def _event(category: str, name: str, start: int, length: int, thread: int, pid: int = 1, **args: int) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, "ts": start, "dur": length, "args": args,
    }  # fmt: skip


def start_cluster(folder: Path) -> tuple[str, list[subprocess.Popen[bytes]]]:
    known = folder / "scheduler.json"
    words = ["--scheduler-file", str(known), "--no-dashboard"]

    def start(*command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "dask", *command, *words], cwd=folder, stderr=subprocess.DEVNULL
        )

    started = [start("scheduler", "--host", "127.0.0.1", "--port", "0")]
    started += [start("worker", "--nthreads", "1", "--no-nanny") for _ in range(2)]
    while not (known.exists() and known.stat().st_size):
        time.sleep(0.1)
    address = json.loads(known.read_text())["address"]
    from distributed import Client

    with Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
    return address, started


def strip(report: Report) -> str:
    return json.dumps(report.to_json(), sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    stragglers = sorted({7, arguments.ranks // 3, arguments.ranks - 2})
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch) / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(arguments.ranks):
            write_rank(folder, rank, arguments.ranks, rank in stragglers)
        rows = []
        began = time.monotonic()
        here = report_traces([folder], workers=2)
        rows.append({"who": "2 processes", "wall_s": round(time.monotonic() - began, 1)})
        address, started = start_cluster(Path(scratch))
        victims = [started[1]]

        def kill_one(done_bytes: int, total_bytes: int) -> None:
            if victims and done_bytes > total_bytes / 2:
                os.kill(victims.pop().pid, signal.SIGKILL)

        try:
            began = time.monotonic()
            there = report_traces([folder], scheduler=address, progress=kill_one)
            rows.append({"who": "Dask, one of 2 workers killed", "wall_s": round(time.monotonic() - began, 1)})
        finally:
            for one in started:
                one.kill()
                one.wait()
    found = [finding for finding in here.findings if finding.rule == "straggler"]
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True).strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "ranks": arguments.ranks,
        "rows": rows,
        "ranks_in_report": len(here.ranks),
        "same_report": strip(here) == strip(there),
        "worker_was_killed": not victims,
        "planted_stragglers": stragglers,
        "named_stragglers": [list(finding.ranks) for finding in found],
        "peak_bytes_of_the_reporting_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_bytes_of_a_reading_process": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }
    target = ROOT / "benchmarks" / "results" / "reach" / "many_ranks.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    runs = json.loads(target.read_text())["runs"] if target.exists() else []
    runs = [row for row in runs if row["ranks"] != arguments.ranks] + [result]
    head = {name: result[name] for name in ("date", "commit", "machine")}
    target.write_text(json.dumps({**head, "runs": runs}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
