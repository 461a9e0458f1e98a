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

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
REAL_TRACE = ROOT.parent / "shared" / "traces" / "a100_ddp_rank3of8" / "control.json.gz"

_NUMBER = re.compile(
    rb'(?P<key>"(?:ts|id|correlation|External id|Sequence number|Profiler Event Index)"\s*:\s*"?|"ProfilerStep#)'
    rb"(?P<number>\d+)"
)
_RANK = re.compile(rb'"rank"\s*:\s*\d+')
_WORLD = re.compile(rb'"world_size"\s*:\s*\d+')
PEER_MOST_MB = 1000
"""Beyond it the peer needs more memory than usual machines have."""
_TIME = re.compile(rb'"ts"\s*:\s*"?(\d+)')

_READ = """
import json, resource, sys
from pathlib import Path
from hotloop.trace.inputs import find_traces, read_trace_file
(file,) = find_traces([sys.argv[1]]).files
(trace,) = read_trace_file(file, cache_folder=Path(sys.argv[2]) if sys.argv[2] else None)
used = resource.getrusage(resource.RUSAGE_SELF)
status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps({
    "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": int(status) * 1024, "events": len(trace),
    "work_ns": int(trace.duration_ns.sum()), "notes": [note.code for note in trace.notes],
}))
"""

_SAME = """
import json, resource, sys
from pathlib import Path
from hotloop.analyze.timeline.idle import explain_idle
from hotloop.analyze.timeline.tables import measure_launches
from hotloop.analyze.timeline.anatomy import find_host_phases
from hotloop.analyze.timeline.reduce import lay_groundwork
from hotloop.analyze.timeline.classes import cover_devices, describe_device
from hotloop.analyze.timeline.steps import assign_device_work
from hotloop.analyze.timeline.tables import tabulate_kernels
from hotloop.trace.inputs import find_traces, read_trace_file
(file,) = find_traces([sys.argv[1]]).files
(trace,) = read_trace_file(file)
ground = lay_groundwork(trace)
parts = (trace, ground.links, ground.classes)
covers = cover_devices(*parts)
device = describe_device(trace, ground.links, covers[0])
tabulate_kernels(*parts, top=20, sort="device_time")
phases = find_host_phases(trace, ground.links, ground.steps)
seen = assign_device_work(trace, ground.links, covers[0].work, ground.steps)
idle, _ = explain_idle(trace, ground.links, ground.classes, covers[0], seen, phases.main_thread, 10)
measure_launches(trace, ground.links, covers[0], idle, 10)
used = resource.getrusage(resource.RUSAGE_SELF)
status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": int(status) * 1024}))
"""
"""The analyses that the peer has too: partition and overlap, kernels, causes of idle time, launches and queue depth."""

_RANKS = """
import json, pickle, resource, sys
from functools import partial
from pathlib import Path
import hotloop.pipeline.traces as traces
from hotloop.analyze.timeline.reduce import ReduceOptions

def main():
    sizes = []
    whole = traces.map_traces
    def measured(*paths, **options):
        reduced = whole(*paths, **options)
        sizes.extend(len(pickle.dumps(one.result)) for one in reduced.traces)
        return reduced
    traces.map_traces = measured
    report = traces.report_traces([sys.argv[1]], workers=int(sys.argv[2]))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print(json.dumps({
        "cpu_s": sum(u.ru_utime + u.ru_stime for u in used), "own_cpu_s": used[0].ru_utime + used[0].ru_stime,
        "peak_bytes": int(status) * 1024, "worker_peak_bytes": used[1].ru_maxrss * 1024,
        "ranks": len(report.ranks), "matched": report.trace.matched_count, "most_bytes_a_rank": max(sizes),
    }))

if __name__ == "__main__":
    main()
"""

_ANALYSE = """
import json, resource, sys
from pathlib import Path
from hotloop.pipeline.traces import report_traces
report = report_traces([sys.argv[1]])
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
    """The same analyses by hotloop and HolisticTraceAnalysis on one file, in turns; whole processes with imports."""
    ours, peers = [], []
    for _ in range(repeats):
        ours.append(run_fresh(_SAME, str(path)))
        peers.append(run_fresh(_PEER, str(path), python=peer_python))
    size_bytes = path.stat().st_size
    mine, theirs = _summarise(ours, size_bytes), _summarise(peers, size_bytes)
    return {
        "hotloop": mine,
        "peer": theirs,
        "cpu_ratio": round(theirs["min_cpu_s"] / mine["min_cpu_s"], 2),
        "memory_ratio": round(theirs["peak_bytes"] / mine["peak_bytes"], 2),
    }


def measure_analyses(path: Path, repeats: int, load_cpu_s: float) -> dict[str, Any]:
    """The analyses that the peer has, and everything that `hotloop trace` does before it draws; what the second has
    over the first, against the load."""
    same, all_of_them = [], []
    for _ in range(repeats):
        same.append(run_fresh(_SAME, str(path)))
        all_of_them.append(run_fresh(_ANALYSE, str(path)))
    size_bytes = path.stat().st_size
    few, many = _summarise(same, size_bytes), _summarise(all_of_them, size_bytes)
    further_cpu_s = round(many["min_cpu_s"] - few["min_cpu_s"], 3)
    return {
        "same_as_peer": few,
        "whole_report": many,
        "further_cpu_s": further_cpu_s,
        "further_over_load_ratio": round(further_cpu_s / load_cpu_s, 2),
    }


def measure_ranks(counts: Sequence[int], folder: Path, source: Path) -> Iterator[dict[str, Any]]:
    """The real trace as so many ranks of one job; two workers."""
    raw = source.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    for count in counts:
        ranks = folder / f"ranks_{count}"
        ranks.mkdir()
        for rank in range(count):
            own = _RANK.sub(b'"rank": %d' % rank, text, count=1)
            (ranks / f"rank_{rank}.json").write_bytes(_WORLD.sub(b'"world_size": %d' % count, own, count=1))
        script = folder / "read_ranks.py"
        script.write_text(_RANKS)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script), str(ranks), "2"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        yield {"bytes": len(text) * count, **json.loads(done.stdout)}
        for path in ranks.iterdir():
            path.unlink()


def measure_reading(path: Path, repeats: int) -> dict[str, Any]:
    """Reading the file, writing its cache once, and opening it from there."""
    folder = path.with_name(f"{path.name}.cache")
    reads = [run_fresh(_READ, str(path), "") for _ in range(repeats)]
    written = run_fresh(_READ, str(path), str(folder))
    cache = next(iter(folder.glob("*")), None) if folder.exists() else None
    opened = [run_fresh(_READ, str(path), str(folder)) for _ in range(repeats)]
    if len({(run["events"], run["work_ns"]) for run in (*reads, written, *opened)}) != 1:
        raise SystemExit(f"{path}: the readings differ")
    size_bytes = path.stat().st_size
    return {
        "bytes": size_bytes,
        "events": reads[0]["events"],
        "cache_bytes": cache.stat().st_size if cache is not None else None,
        "read": _summarise(reads, size_bytes),
        "read_and_write_cache": _summarise([written], size_bytes),
        "open_cache": _summarise(opened, size_bytes) if cache is not None else None,
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
        path.with_name(f".{path.name}.hlcols").unlink(missing_ok=True)
        row |= measure_analyses(path, repeats, row["read"]["min_cpu_s"])
        if peer_python is not None and size_mb <= PEER_MOST_MB:
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
    parser.add_argument("--ranks", type=int, nargs="*", default=[], help="also the trace as so many ranks of one job")
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
            print(
                f"    the peer's analyses {row['same_as_peer']['min_cpu_s']:.2f} CPU-s, the whole report "
                f"{row['whole_report']['min_cpu_s']:.2f} CPU-s, {row['whole_report']['peak_bytes'] / 1e6:.0f} MB: "
                f"further analyses {row['further_over_load_ratio']:.2f}x the load",
                flush=True,
            )
            if "beside" in row:
                beside = row["beside"]
                print(
                    f"    the same analyses {beside['hotloop']['min_cpu_s']:.2f} CPU-s, "
                    f"{beside['hotloop']['peak_bytes'] / 1e6:.0f} MB · HolisticTraceAnalysis "
                    f"{beside['peer']['min_cpu_s']:.2f} CPU-s, {beside['peer']['peak_bytes'] / 1e6:.0f} MB: "
                    f"{beside['cpu_ratio']:.1f}x CPU, {beside['memory_ratio']:.1f}x memory",
                    flush=True,
                )
        by_ranks = []
        for row in measure_ranks(given.ranks, Path(folder), given.source):
            by_ranks.append(row)
            print(json.dumps(row), flush=True)
    if given.json:
        result = {
            "commit": describe_commit(),
            "date": datetime.date.today().isoformat(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "source": given.source.name,
        }
        given.json.write_text(draw_raw({**result, "rows": rows, "ranks": by_ranks}))


if __name__ == "__main__":
    main()
