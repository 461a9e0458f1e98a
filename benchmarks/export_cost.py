"""What exporters cost -> results/reach/export_cost.json: a day's points, endpoints that fail, and a training.

``points``: 10 million points through a target's writer; resident memory after a hundredth of them and at their end.
``held``: a million points more, and what Python holds after a hundredth of them and at their end.
``faults``: an hour, run 600 times as fast, of an endpoint that is dead, is slow, or answers garbage.
``pairs``: a small training under `hotloop run` without and with every exporter on, in turn (most endpoints dead); the
CPU time of its training process and of its training thread.
``together``: the same with `--live` on as well, and `hotloop serve` whose events of the run somebody reads.

Each call replaces the rows of its target or endpoint, or adds pairs to those that are there.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from overhead import mean_interval
from raw import describe_commit, draw_raw
from serve_page import serve, watch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from hotloop.core.live import LiveRank, LiveRun  # noqa: E402 (also from a checkout that is not installed)
from hotloop.core.phases import PHASES  # noqa: E402
from hotloop.export import TARGETS, exporter, target  # noqa: E402
from hotloop.export.exporter import Exporter  # noqa: E402
from hotloop.export.points import Snapshot, make_snapshot  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "reach" / "export_cost.json"
DAY_POINTS = 10_000_000
RANKS = 64
STEPS = 48_000
BLOCK_STEPS = 100
SPEED = 600
"""Seconds of the simulated hour for each second that it takes."""
INTERVAL_S, HOUR_S = 5.0, 3600

TRAINING = ROOT / "benchmarks" / "pair_training.py"


def make_run(steps_count: int) -> LiveRun:
    """A run of RANKS ranks at one moment."""
    phase_ns = dict.fromkeys(PHASES, 100_000_000)
    rank = LiveRank(
        rank=0, local_rank=0, host="box", pid=7, restart=0, world_size=RANKS, steps_count=steps_count,
        window_count=100, window_ns=900_000_000, phase_ns=phase_ns, samples_per_s=1600.0 + steps_count,
        tokens_per_s=1e5, rss_bytes=1 << 30, device_allocated_bytes=1 << 30, device_reserved_bytes=1 << 31,
        device_total_bytes=1 << 36, utilization_ratio=None, age_s=0.5, is_closed=False, metrics={"loss": 0.25},
    )  # fmt: skip
    return LiveRun(
        name="one", command=(), started_wall_s=1000.0, state="running", exit_code=None, age_s=0.5,
        ranks=tuple(replace(rank, rank=number) for number in range(RANKS)), devices=(), steps_total=10_000_000,
        notes=(),
    )  # fmt: skip


class Sink:
    """An HTTP endpoint that takes everything."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                answer(self)

            def log_message(self, *_: Any) -> None: ...

        class Server(HTTPServer):
            def handle_error(self, *_: Any) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


def accept(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "2")
    handler.end_headers()
    handler.wfile.write(b"{}")


FAULTS: Mapping[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "slow": lambda _: time.sleep(20.0 / SPEED),
    "garbage": lambda handler: (handler.wfile.write(b"\x00\xff" * 500), None)[1],
}


def measure_points(folder: Path, target: str) -> dict[str, Any]:
    """A day's points through one target: resident memory after a hundredth of them and at the end."""
    sender, made = _open(folder, target)
    start_s = time.monotonic()
    early, late = _send_points(sender, made, DAY_POINTS, _resident_bytes)
    sender.close()
    row = {"target": target, "points": DAY_POINTS, "snapshots": -(-DAY_POINTS // len(made[0].points))}
    row |= {"seconds": round(time.monotonic() - start_s, 1)}
    return row | {"resident_early_bytes": early, "resident_late_bytes": late}


def measure_held(folder: Path, target: str) -> dict[str, Any]:
    """What Python holds after a thousandth of a day's points and after a tenth of them."""
    sender, made = _open(folder, target)
    tracemalloc.start()
    early, late = _send_points(sender, made, DAY_POINTS // 10, _held_bytes)
    tracemalloc.stop()
    sender.close()
    return {"target": target, "points": DAY_POINTS // 10, "held_early_bytes": early, "held_late_bytes": late}


def _open(folder: Path, target: str) -> tuple[Any, list[Snapshot]]:
    (folder / "token").write_text("t")
    files = {"prometheus": "run.prom", "json": "run.jsonl", "tensorboard": "logs"}
    where = str(folder / files[target]) if target in files else Sink(accept).url
    sender = TARGETS[target].open(where, {"KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token")})
    return sender, [make_snapshot(make_run(number), 1000.0) for number in range(20)]


def _send_points(sender: Any, made: list[Snapshot], points: int, measure: Callable[[], int]) -> tuple[int, int]:
    """``measure`` after a hundredth of the points, and after all of them. Every snapshot is of a later step."""
    sent, count, early = 0, 0, None
    while sent < points:
        snapshot = made[count % len(made)]
        lead, *others = snapshot.run.ranks
        run = replace(snapshot.run, ranks=(replace(lead, steps_count=1000 + count), *others))
        sender.send(replace(snapshot, run=run, wall_s=1000.0 + count))
        sent, count = sent + len(snapshot.points), count + 1
        if early is None and sent >= points // 100:
            early = measure()
    return early or 0, measure()


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def measure_fault(name: str) -> dict[str, Any]:
    """An hour of an endpoint that fails in one way."""
    exporter.FIRST_WAIT_S, exporter.LONGEST_WAIT_S = 1.0 / SPEED, 60.0 / SPEED
    target.WHOLE_S = 10.0 / SPEED
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{port.getsockname()[1]}"  # bound and not listening: refused
        if name != "dead":
            url = Sink(FAULTS[name]).url
        timeout_ms = str(max(1, round(5000 / SPEED)))
        one = Exporter("otlp", TARGETS["otlp"].open(url, {"OTEL_EXPORTER_OTLP_TIMEOUT": timeout_ms}))
        one.start()
        offered, longest_s, count, began_s = 0, 0.0, 0, time.monotonic()
        while count < HOUR_S / INTERVAL_S:
            snapshot: Snapshot = make_snapshot(make_run(count), 1000.0)
            before_s = time.perf_counter()
            one.offer(snapshot)
            longest_s = max(longest_s, time.perf_counter() - before_s)
            offered, count = offered + len(snapshot.points), count + 1
            time.sleep(max(0.0, began_s + count * INTERVAL_S / SPEED - time.monotonic()))
        before_s = time.perf_counter()
        exported = one.stop(1.0)
    row = {"endpoint": name, "simulated_s": HOUR_S, "seconds": round(before_s - began_s, 1), "offered": offered}
    row |= {"sent": exported.sent_count, "lost": exported.lost_count, "reason": exported.reason}
    row |= {"longest_offer_s": round(longest_s, 6), "stop_s": round(time.perf_counter() - before_s, 3)}
    return row | {"all_counted": exported.sent_count + exported.lost_count == offered}


def measure_pair(folder: Path, number: int, *, together: bool) -> dict[str, Any]:
    """The training without and with every exporter, in an order that alternates."""
    row: dict[str, Any] = {"first": ("off", "on")[number % 2]}
    for mode in ("off", "on") if number % 2 == 0 else ("on", "off"):
        place = folder / f"{number}-{mode}"
        place.mkdir()
        if together and mode == "on":
            with serve(place) as (address, _):
                over, heard = threading.Event(), list[str]()
                reader = threading.Thread(target=watch, args=(address, "one", over, heard))
                reader.start()
                row[mode] = _train(place, is_on=True, more=["--live"]) | {"events": heard.count("running")}
                over.set()
                reader.join()
        else:
            row[mode] = _train(place, is_on=mode == "on")
    return row


def _train(folder: Path, *, is_on: bool, more: Sequence[str] = ()) -> dict[str, Any]:
    shutil.copy(TRAINING, folder / "train.py")
    (folder / "token").write_text("t")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "PYTHON", "OTEL_"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT / "src")}
    options: list[str] = []
    if is_on:
        wishes = (
            "prometheus=:0",
            "prometheus=run.prom",
            "json=run.jsonl",
            "tensorboard=logs",
            "otlp=http://127.0.0.1:9",
        )
        options = [word for wish in wishes for word in ("--export", wish)]
        dead = {"KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1:9/", "KUBEFLOW_TRAINER_SERVER_TOKEN": "token"}
        environment |= dead
    command = [sys.executable, "-m", "hotloop", "run", "--name", "one", "--no-probe", "-q", *options, *more]
    command += ["--", sys.executable]
    command += ["train.py", "out.json", str(STEPS), str(BLOCK_STEPS), "thread_time_ns"]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120, stderr=subprocess.DEVNULL)
    measured: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return {key: round(value, 6) for key, value in measured.items()}


def summarize(pairs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Over the pairs: medians and extremes, and means with 95 % intervals."""
    ratios = [pair["on"]["process_cpu_s"] / pair["off"]["process_cpu_s"] for pair in pairs]
    process_us = [(pair["on"]["process_cpu_s"] - pair["off"]["process_cpu_s"]) * 1e6 / STEPS for pair in pairs]
    thread_us = [(pair["on"]["block_ns"] - pair["off"]["block_ns"]) * 1e-3 for pair in pairs]
    found: dict[str, Any] = {"n": len(pairs)}
    for name, values, digits in (
        ("process_cpu_ratio", ratios, 4),
        ("process_us_per_step", process_us, 2),
        ("thread_us_per_step", thread_us, 2),
    ):
        found[f"{name}_median"] = round(statistics.median(values), digits)
        found[f"{name}_min_max"] = [round(min(values), digits), round(max(values), digits)]
        if len(values) > 1:
            found[f"{name}_mean"] = mean_interval(values)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("points", "held", "faults", "pairs", "together"))
    parser.add_argument("--target", choices=tuple(TARGETS), default="prometheus", help="of the parts points and held")
    parser.add_argument("--fault", choices=("dead", *FAULTS), default="dead")
    parser.add_argument("--pairs", type=int, default=2, help="pairs to add")
    arguments = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    about = {"commit": describe_commit(), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    part = arguments.part
    rows = found.get(part, [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if part in ("points", "held"):
            measure = {"points": measure_points, "held": measure_held}[part]
            rows = [row for row in rows if row["target"] != arguments.target]
            rows.append(measure(folder, arguments.target) | about)
        elif part == "faults":
            rows = [row for row in rows if row["endpoint"] != arguments.fault]
            rows.append(measure_fault(arguments.fault) | about)
        else:
            for _ in range(arguments.pairs):
                rows.append(measure_pair(folder, len(rows), together=part == "together") | about)
    print(json.dumps(rows[-1]))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    found = {
        **about,
        "machine": machine,
        "steps": STEPS,
        **{k: v for k, v in found.items() if k not in about},
        part: rows,
    }
    for name in ("pairs", "together"):
        if found.get(name):
            found[f"{name}_summary"] = summarize(found[name])
    print(found.get(f"{part}_summary", ""))
    RESULT.write_text(draw_raw(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
