"""A real trace, repeated to any size -> CPU time and peak memory of reading it, each in a fresh process.

    python benchmarks/trace_engine.py --sizes 10 35 100 350 --repeats 3 --json benchmarks/results/trace_engine.json

The repetitions have shifted times, step numbers and ids (correlation, external, sequence, flow), so that nothing but
the names, shapes and places repeats. CPU seconds are user + system of the whole process with its imports, the minimum
of the repeats beside all of them; memory is the process's own high-water mark (VmHWM).
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REAL_TRACE = ROOT.parent / "shared" / "traces" / "a100_ddp_rank3of8" / "control.json.gz"

_NUMBER = re.compile(
    rb'(?P<key>"(?:ts|id|correlation|External id|Sequence number|Profiler Event Index)"\s*:\s*"?|"ProfilerStep#)'
    rb"(?P<number>\d+)"
)
_TIME = re.compile(rb'"ts"\s*:\s*"?(\d+)')

_READ = """
import json, resource, sys
from pathlib import Path
from hotloop.trace.inputs import find_traces, read_trace_file
(file,) = find_traces([sys.argv[1]]).files
(trace,) = read_trace_file(file, write_cache=sys.argv[2] == "write")
used = resource.getrusage(resource.RUSAGE_SELF)
status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps({
    "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": int(status) * 1024, "events": len(trace),
    "work_ns": int(trace.duration_ns.sum()), "notes": [note.code for note in trace.notes],
}))
"""

_ANALYSE = """
import json, resource, sys
from pathlib import Path
from hotloop.pipeline.traces import report_traces
report = report_traces([sys.argv[1]], write_cache=False)
used = resource.getrusage(resource.RUSAGE_SELF)
status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps({
    "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": int(status) * 1024,
    "idle_ns": report.device.idle.total_ns, "compute_ns": report.device.compute.total_ns,
}))
"""
"""Everything that hotloop trace does before it draws: more than the peer's six analyses."""

_PEER = """
import contextlib, io, json, resource, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    from hta.trace_analysis import TraceAnalysis
    peer = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
    parts = peer.get_temporal_breakdown(visualize=False)
    peer.get_gpu_kernel_breakdown(visualize=False)
    peer.get_comm_comp_overlap(visualize=False)
    peer.get_idle_time_breakdown(ranks=[0], visualize=False)
    peer.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
    peer.get_queue_length_summary(ranks=[0])
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps({
    "cpu_s": sum(u.ru_utime + u.ru_stime for u in used),
    "peak_bytes": max(int(status) * 1024, used[1].ru_maxrss * 1024),
    "idle_us": float(parts["idle_time(us)"].sum()), "compute_us": float(parts["compute_time(us)"].sum()),
}))
"""
"""HolisticTraceAnalysis: load, temporal, kernel, overlap, idle, launch and queue."""


def enlarge_trace(source: Path, target: Path, size_bytes: int) -> int:
    """Write a trace of at least ``size_bytes`` (at least one repetition); the number of repetitions."""
    raw = source.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    events = text[begin:end]
    times = [int(found[1]) for found in _TIME.finditer(events)]
    shift_us = max(times) - min(time for time in times if time) + 1_000_000
    literals, numbers, steps = _split_numbers(events, shift_us)
    repetitions = max(1, round(size_bytes / len(events)))
    with target.open("wb") as file:
        file.write(text[:begin])
        for repetition in range(repetitions):
            parts: list[bytes] = []
            for literal, number, step in zip(literals, numbers, steps, strict=False):
                parts += (literal, b"%d" % (number + repetition * step))
            if repetition:
                file.write(b",")
            file.write(b"".join([*parts, literals[-1]]))
        file.write(text[end:])
    return repetitions


def _split_numbers(events: bytes, shift_us: int) -> tuple[list[bytes], list[int], list[int]]:
    """The text between the numbers that shift, the numbers, and by how much each shifts per repetition."""
    shifts = {b'"ts"': shift_us, b'"ProfilerStep#': 1000}
    literals: list[bytes] = []
    numbers: list[int] = []
    steps: list[int] = []
    at = 0
    for found in _NUMBER.finditer(events):
        literals.append(events[at : found.start("number")])
        numbers.append(int(found["number"]))
        steps.append(next((step for key, step in shifts.items() if found["key"].startswith(key)), 10_000_000))
        at = found.end()
    return [*literals, events[at:]], numbers, steps


def run_fresh(code: str, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
    """What a fresh interpreter prints as JSON."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure_beside(path: Path, repeats: int, peer_python: str) -> dict[str, Any]:
    """The whole command and HolisticTraceAnalysis on the same file, in turns; whole processes with their imports."""
    ours, peers = [], []
    for _ in range(repeats):
        ours.append(run_fresh(_ANALYSE, str(path)))
        peers.append(run_fresh(_PEER, str(path), python=peer_python))
    size_bytes = path.stat().st_size
    mine, theirs = _summarise(ours, size_bytes), _summarise(peers, size_bytes)
    return {
        "hotloop": mine,
        "peer": theirs,
        "cpu_ratio": round(theirs["min_cpu_s"] / mine["min_cpu_s"], 2),
        "memory_ratio": round(theirs["peak_bytes"] / mine["peak_bytes"], 2),
    }


def measure_reading(path: Path, repeats: int) -> dict[str, Any]:
    """Reading the file, writing its cache once, and opening it from there."""
    cache = path.with_name(f".{path.name}.hlcols")
    reads = [run_fresh(_READ, str(path), "no") for _ in range(repeats)]
    written = run_fresh(_READ, str(path), "write")
    opened = [run_fresh(_READ, str(path), "no") for _ in range(repeats)]
    if len({(run["events"], run["work_ns"]) for run in (*reads, written, *opened)}) != 1:
        raise SystemExit(f"{path}: the readings differ")
    size_bytes = path.stat().st_size
    return {
        "bytes": size_bytes,
        "events": reads[0]["events"],
        "cache_bytes": cache.stat().st_size if cache.exists() else None,
        "read": _summarise(reads, size_bytes),
        "read_and_write_cache": _summarise([written], size_bytes),
        "open_cache": _summarise(opened, size_bytes) if cache.exists() else None,
    }


def _summarise(runs: Sequence[dict[str, Any]], size_bytes: int) -> dict[str, Any]:
    cpu_s = [round(run["cpu_s"], 3) for run in runs]
    return {
        "n": len(runs),
        "cpu_s": cpu_s,
        "min_cpu_s": min(cpu_s),
        "min_cpu_s_per_gb": round(min(cpu_s) / size_bytes * 1e9, 2),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
    }


def measure(
    sizes_mb: Sequence[int], repeats: int, folder: Path, source: Path, peer_python: str | None
) -> Iterator[dict[str, Any]]:
    """One row per size, each trace made, measured and removed."""
    for size_mb in sizes_mb:
        path = folder / f"trace_{size_mb}mb.json"
        repetitions = enlarge_trace(source, path, size_mb * 10**6)
        row = {"size_mb": size_mb, "repetitions": repetitions, **measure_reading(path, repeats)}
        if peer_python is not None:
            path.with_name(f".{path.name}.hlcols").unlink(missing_ok=True)
            row["beside"] = measure_beside(path, repeats, peer_python)
        yield row
        path.unlink()
        path.with_name(f".{path.name}.hlcols").unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 35, 100, 350], help="in MB (10^6 bytes)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--source", type=Path, default=REAL_TRACE)
    parser.add_argument("--folder", type=Path, help="where the traces are made (a temporary folder)")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter with HolisticTraceAnalysis 0.5.0, pandas < 3")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for row in measure(given.sizes, given.repeats, Path(folder), given.source, given.peer):
            rows.append(row)
            read, opened = row["read"], row["open_cache"]
            print(
                f"{row['bytes'] / 1e6:8.1f} MB {row['events']:9,} events · read {read['min_cpu_s']:.2f} CPU-s "
                f"({read['min_cpu_s_per_gb']:.2f} per GB, n={read['n']}), peak {read['peak_bytes'] / 1e6:.0f} MB · "
                + (
                    f"from cache {opened['min_cpu_s']:.2f} CPU-s, peak {opened['peak_bytes'] / 1e6:.0f} MB"
                    if opened
                    else "too small for a cache"
                ),
                flush=True,
            )
            if "beside" in row:
                beside = row["beside"]
                print(
                    f"    hotloop trace {beside['hotloop']['min_cpu_s']:.2f} CPU-s, "
                    f"{beside['hotloop']['peak_bytes'] / 1e6:.0f} MB · HolisticTraceAnalysis "
                    f"{beside['peer']['min_cpu_s']:.2f} CPU-s, {beside['peer']['peak_bytes'] / 1e6:.0f} MB: "
                    f"{beside['cpu_ratio']:.1f}x CPU, {beside['memory_ratio']:.1f}x memory",
                    flush=True,
                )
    if given.json:
        result = {
            "date": datetime.date.today().isoformat(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "source": given.source.name,
        }
        given.json.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
