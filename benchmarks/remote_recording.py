"""`hotloop run --record` on two nodes -> results/reach/remote_recording.json: what arrives, and what it costs.

``nodes``: two `hotloop run --record` of torchrun (--nnodes 2, gloo) in different folders, an S3 endpoint (moto) at
which 30 % of the requests fail, and the report from its bucket. In turn: nobody is killed, one node is killed with all
its processes, the uploading process of one node is killed. ``endpoints``: one that is dead, one that never answers, one
that answers garbage. ``pairs``: a small training without --record, to a dead endpoint, and to a folder, in turn.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.remote.endpoint import FlakyEndpoint, settings_for  # noqa: E402 (also where it is not installed)

RESULT = ROOT / "benchmarks" / "results" / "reach" / "remote_recording.json"
HOTLOOP = (sys.executable, "-m", "hotloop")
NODE_STEPS, NODE_STEP_S = 2000, 0.01
CASES = ("whole", "node killed", "uploader killed")
KILL_AFTER_STEPS = 1500
END_AFTER_S = 30.0
"""Should the other node still wait for the killed one, a scheduler's SIGTERM ends it so much later."""
PAIR_STEPS, BLOCK_STEPS = 40_000, 100
MODES = ("none", "dead", "folder")

NODE_TRAINING = """
import os, sys, time
import torch
from torch import nn
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(16, 32)
count = open(f"steps-{dist.get_rank()}", "wb", buffering=0)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    count.write(b".")
    time.sleep(float(sys.argv[2]))
dist.destroy_process_group()
"""

CLOCK = "perf_counter_ns"
PAIR_TRAINING = ROOT / "benchmarks" / "pair_training.py"


def clean_environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "PYTHON", "AWS_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT / "src"), **changes}


def free_port() -> int:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        number: int = port.getsockname()[1]
        return number


def processes_below(pid: int) -> dict[int, list[bytes]]:
    """Process id -> words of its command, of a process and of all below it."""
    found: dict[int, tuple[int, list[bytes]]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = parent, (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
    below = {pid}
    while more := {child for child, (parent, _) in found.items() if parent in below} - below:
        below |= more
    return {one: found[one][1] for one in below if one in found}


def find_uploaders(pid: int) -> list[int]:
    return [one for one, words in processes_below(pid).items() if b"--follow" in words]


def measure_nodes(case: str, seed: int) -> dict[str, Any]:
    """Both nodes of one case, and what the report from the bucket says of them."""
    with tempfile.TemporaryDirectory() as name:
        folder, endpoint = Path(name), FlakyEndpoint(0.3, seed=seed, slow_s=2.0)
        try:
            os.environ |= settings_for(endpoint.url)
            endpoint.make_bucket("runs")
            return _measure_nodes(case, folder, endpoint) | {"seed": seed}
        finally:
            endpoint.close()


def _measure_nodes(case: str, folder: Path, endpoint: FlakyEndpoint) -> dict[str, Any]:
    environment = clean_environment(**settings_for(endpoint.url), XDG_CACHE_HOME=str(folder / "cache"))
    port = free_port()
    nodes = [_start_node(folder / f"node{rank}", rank, port, environment) for rank in range(2)]
    counts = [folder / f"node{rank}" / f"steps-{rank}" for rank in range(2)]
    peak_bytes, killed, killed_s, ended = 0, 0, 0.0, False
    while any(node.poll() is None for node in nodes):
        uploaders = [pid for node in nodes for pid in find_uploaders(node.pid)]
        peak_bytes = max([peak_bytes, *map(_peak_bytes, uploaders)])
        if case != "whole" and not killed and counts[1].exists() and counts[1].stat().st_size > KILL_AFTER_STEPS:
            doomed = list(processes_below(nodes[1].pid)) if case == "node killed" else find_uploaders(nodes[1].pid)
            killed, killed_s = len(doomed), time.monotonic()
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
        if case == "node killed" and killed and time.monotonic() - killed_s > END_AFTER_S and not ended:
            nodes[0].send_signal(signal.SIGTERM)
            ended = True
        time.sleep(0.2)
    said = [_last_line(folder / f"node{rank}" / "said") for rank in range(2)]
    trained = [count.stat().st_size for count in counts]
    words = [*HOTLOOP, "report", "s3://runs/run", "-q", "--exit-zero", "--json", "report.json"]
    began_report_s = time.monotonic()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    report = json.loads((folder / "report.json").read_text()) if done.returncode == 0 else {"ranks": [], "health": []}
    application = endpoint.application
    row = {
        "case": case,
        "exit_codes": [node.returncode for node in nodes],
        "killed_processes": killed,
        "trained_steps": trained,
        "reported_steps": {str(rank["rank"]): rank["steps"] for rank in report["ranks"]},
        "reported_lost_rows": {str(rank["rank"]): rank["lost_rows"] for rank in report["ranks"]},
        "said_at_end": said,
        "reported_missing": [
            h["message"] for h in report["health"] if h["message"].startswith(("node ", "processes/"))
        ],
        "report_error": done.stderr.strip()[-300:] or None,
        "report_s": round(time.monotonic() - began_report_s, 1),
        "uploader_peak_bytes": peak_bytes,
        "requests": application.requests_count,
        "failed": dict(sorted(application.failed.items())),
        "failed_ratio": round(sum(application.failed.values()) / application.requests_count, 3),
    }
    print(json.dumps(row, indent=1), flush=True)
    return row


def _start_node(folder: Path, rank: int, port: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "train.py").write_text(NODE_TRAINING)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank)]
    launch += ["--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    words = [*HOTLOOP, "run", "--no-probe", "--no-deep", "-q", "--record", "s3://runs/run", "--record-wait", "60"]
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [*words, "--", *launch, "train.py", str(NODE_STEPS), str(NODE_STEP_S)],
            cwd=folder,
            env=dict(environment),
            stderr=said,
            stdout=subprocess.DEVNULL,
        )


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("hotloop: ")]
    return lines[-1] if lines else ""


def _peak_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)


class BadServer:
    """Takes connections and treats each as ``answer`` does."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._answer = answer
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._treat, args=(connection,), daemon=True).start()

    def _treat(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._answer(connection)
            except OSError:
                return


def _answer_garbage(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"\x00\xff<garbage>" * 500)


def measure_endpoints() -> list[dict[str, Any]]:
    rows = []
    urls = {
        "dead": f"http://127.0.0.1:{free_port()}",
        "never answers": BadServer(lambda _: time.sleep(600)).url,
        "garbage": BadServer(_answer_garbage).url,
    }
    for name, url in urls.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            shutil.copy(PAIR_TRAINING, folder / "train.py")
            words = [*HOTLOOP, "run", "--no-probe", "-q", "--record", "s3://runs/run", "--record-wait", "2"]
            command = [*words, "--", sys.executable, "train.py", "out.json", "10000", "100", CLOCK]
            environment = clean_environment(**settings_for(url))
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
            now_s = time.time()
            (run,) = (path for path in (folder / ".hotloop").iterdir() if path.is_dir())
            uploaded = json.loads((run / "upload.json").read_text())
            rows.append(
                {
                    "endpoint": name,
                    "exit_code": done.returncode,
                    "rows": uploaded["rows_count"],
                    "lost_rows": uploaded["lost_rows_count"],
                    "end_s": round(now_s - (run / "verdict.json").stat().st_mtime, 2),
                    "reason": uploaded["reason"],
                    "said": done.stderr.splitlines()[-1:],
                }
            )
            print(rows[-1], flush=True)
    return rows


def measure_pair(folder: Path, number: int) -> dict[str, Any]:
    """The training in every mode, beginning with another one each time."""
    order = [MODES[(number + at) % len(MODES)] for at in range(len(MODES))]
    return {"first": order[0], **{mode: _train(folder / f"{number}-{mode}", mode) for mode in order}}


def _train(folder: Path, mode: str) -> dict[str, Any]:
    folder.mkdir()
    shutil.copy(PAIR_TRAINING, folder / "train.py")
    record = {"none": [], "dead": ["--record", "s3://runs/run"], "folder": ["--record", "store"]}[mode]
    environment = clean_environment(**settings_for(f"http://127.0.0.1:{free_port()}"))
    words = [*HOTLOOP, "run", "--no-probe", "--no-deep", "-q", *record, *(["--record-wait", "2"] if record else [])]
    command = [*words, "--", sys.executable, "train.py", "out.json", str(PAIR_STEPS), str(BLOCK_STEPS), CLOCK]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120, stderr=subprocess.DEVNULL)
    measured: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return {key: round(value, 6) for key, value in measured.items()}


def summarize(pairs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians and ranges over the pairs: ratios to the training without --record, and differences per step."""
    summary: dict[str, Any] = {"n": len(pairs)}
    for mode in MODES[1:]:
        walls = [pair[mode]["wall_s"] / pair["none"]["wall_s"] for pair in pairs]
        blocks_us = [(pair[mode]["block_ns"] - pair["none"]["block_ns"]) * 1e-3 for pair in pairs]
        cpus = [pair[mode]["process_cpu_s"] / pair["none"]["process_cpu_s"] for pair in pairs]
        for name, values in (("wall_ratio", walls), ("median_step_us", blocks_us), ("process_cpu_ratio", cpus)):
            summary[f"{mode}_{name}_median"] = round(statistics.median(values), 4)
            summary[f"{mode}_{name}_min_max"] = [round(min(values), 4), round(max(values), 4)]
    summary["step_us"] = round(statistics.median(pair["none"]["wall_s"] for pair in pairs) * 1e6 / PAIR_STEPS, 1)
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("nodes", "endpoints", "pairs"))
    parser.add_argument("--case", choices=CASES, action="append", help="of the part nodes (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the endpoint's failures")
    parser.add_argument("--pairs", type=int, default=5, help="pairs to add")
    arguments = parser.parse_args()
    about = {
        "commit": describe_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    if arguments.part == "nodes":
        new = [measure_nodes(case, arguments.seed) for case in arguments.case or CASES]
    elif arguments.part == "endpoints":
        new = measure_endpoints()
    else:
        with tempfile.TemporaryDirectory() as name:
            new = [measure_pair(Path(name), number) for number in range(arguments.pairs)]
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    rows = ([] if arguments.part == "endpoints" else found.get(arguments.part, [])) + [row | about for row in new]
    found = {**about, **{k: v for k, v in found.items() if k not in about}, arguments.part: rows}
    if found.get("pairs"):
        found["pairs_summary"] = summarize(found["pairs"])
        print(found["pairs_summary"])
    RESULT.write_text(draw_raw(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
