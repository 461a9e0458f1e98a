"""What `hotloop serve` takes -> benchmarks/results/reach: serve_page.json, serve_overhead.json and serve_ranks.json.

``page``: 50 runs, two of them of 100,000 steps, are made here; a fresh server is opened in headless Chromium, which
says when it first painted. ``overhead``: a training with and without a live page open, in turns; CPU time per step of
its whole process. ``ranks``: CPU time of what an open page asks for once a second, for thousands of ranks in one run,
while nobody steps and while every rank steps in between.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import platform
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overhead import mean_interval
from raw import ROOT, describe_commit, draw_raw

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "report")]

from chromium_page import Page, start_chromium  # noqa: E402

from hotloop.core.frames import HEAD_BYTES, KIND_ROW, decode_frames, encode_frame, frame_span_bytes  # noqa: E402
from hotloop.core.recording import (  # noqa: E402
    CLOSED_BY_OPTIMIZER,
    FIELD,
    STEP_FIELDS,
    TIME_FIELDS,
    outcome_to_json,
)
from hotloop.pipeline.live import LiveReader  # noqa: E402
from hotloop.replay.recording_writer import RecordingWriter  # noqa: E402
from hotloop.serve.listing import Listing  # noqa: E402
from hotloop.serve.live import LiveFeeds  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "reach"
HOTLOOP = [sys.executable, "-m", "hotloop"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
RUNS, STEPS, LONG_STEPS = 50, 1_000, 100_000
PAGE_ROUNDS = 5
RANK_ROUNDS, RANK_STEPS = 7, 30
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0] || 0"


def write_run(folder: Path, steps: int, *, is_over: bool, rank: int = 0, world_size: int = 1) -> Path:
    """A run of one process, as its own writer writes it; step times are drawn at random around 10 ms. Its recording."""
    (folder / "processes").mkdir(parents=True, exist_ok=True)
    began_s = time.time() - steps * 0.01 - 5
    manifest = {"schema": "hotloop.run/1", "command": ["python", "train.py"], "started_wall_s": began_s}
    (folder / "run.json").write_text(json.dumps(manifest))
    path = folder / "processes" / f"host-{os.getpid()}-{rank}-0.hlr"
    writer = RecordingWriter(path)
    place = {"rank": rank, "world_size": world_size}
    process = {"kind": "process", "t": 0, "host": platform.node(), "pid": os.getpid(), **place}
    writer.write_fact({**process, "anchor_wall_s": began_s, "argv": ["train.py"]})
    draw, end_ns = random.Random(steps), 0
    for index in range(steps):
        row = [0] * len(STEP_FIELDS)
        parts = [draw.randrange(400_000, 900_000) for _ in TIME_FIELDS]
        known = {"index": index, "rows_merged": 1, "closed_by": CLOSED_BY_OPTIMIZER, "forwards": 1, "backwards": 1}
        known |= {"start_ns": end_ns, "end_ns": end_ns + sum(parts), "rss_bytes": 1 << 30, "micro_batches": 1}
        end_ns += sum(parts)
        for name, value in {**known, **dict(zip(TIME_FIELDS, parts, strict=True))}.items():
            row[FIELD[name]] = value
        writer.write_row(row)
        if index % 1000 == 0:
            writer.flush()
    if is_over:
        writer.close()
        (folder / "outcome.json").write_text(outcome_to_json(exit_code=0, signal=None, duration_s=end_ns * 1e-9))
    else:
        writer.flush()
    return path


# ---- what a page of thousands of ranks takes


def measure_ranks(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Refreshes of the page of one run: the first, some while nothing happens, and some after a step of every rank."""
    run = folder / ".hotloop" / "many"
    paths = [write_sparse(run, rank, ranks) for rank in range(ranks)]
    data = paths[0].read_bytes()
    newest = max(
        (one for one in decode_frames(data, HEAD_BYTES, len(data)) if one.kind == KIND_ROW), key=lambda f: f.at
    )
    values = list(struct.unpack(f"<{len(STEP_FIELDS)}q", newest.payload))
    listing, feeds = Listing(folder / ".hotloop"), LiveFeeds(LiveReader, clock=iter(range(10**6)).__next__)
    rows: list[dict[str, Any]] = []
    for number in range(1 + 2 * RANK_ROUNDS):
        kind = "first" if number == 0 else "idle" if number <= RANK_ROUNDS else "every rank steps"
        if number > RANK_ROUNDS:
            values[FIELD["index"]] += 1
            for name in ("start_ns", "end_ns"):
                values[FIELD[name]] += 10_000_000
            place = newest.at + (number - RANK_ROUNDS) * frame_span_bytes(len(newest.payload))
            frame = encode_frame(KIND_ROW, newest.sequence + number, struct.pack(f"<{len(values)}q", *values))
            for path in paths:
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(frame)
        began_ns = time.process_time_ns()
        entry = listing.read_one(run.name, time.time())
        assert entry is not None
        content = feeds.read(run, entry)
        took_ms = (time.process_time_ns() - began_ns) * 1e-6
        rows.append({"refresh": kind, "cpu_ms": round(took_ms, 1), "problem": content["problem"]})
    return rows


def write_sparse(run: Path, rank: int, ranks: int) -> Path:
    """A rank's recording, without the empty rest of its segment on the disk."""
    path = write_run(run, RANK_STEPS, is_over=False, rank=rank, world_size=ranks)
    data = path.read_bytes()
    path.unlink()
    used = data.rstrip(b"\0")
    with path.open("wb") as file:
        for at in range(0, len(used), 4096):
            if data[at : at + 4096].strip(b"\0"):
                file.seek(at)
                file.write(data[at : at + 4096])
        file.truncate(len(data))
    return path


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Address and process of a server that ends with the block."""
    server = subprocess.Popen(
        [*HOTLOOP, "serve", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), server
    finally:
        server.terminate()
        server.wait(timeout=20)


def read_peak_bytes(pid: int) -> int:
    """The largest resident memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10


def measure_page(folder: Path) -> list[dict[str, Any]]:
    """A fresh server and a fresh browser each time: the list, then the run of 100,000 steps, then its report."""
    rows = []
    for number in range(PAGE_ROUNDS):
        with (
            serve(folder) as (address, server),
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
            start_chromium(Path(profile)) as page,
        ):
            row: dict[str, Any] = {"round": number, "list_paint_ms": paint(page, address)}
            row["listed"] = page.evaluate("document.querySelectorAll('#runs tbody tr').length")
            row["list_peak_bytes"] = read_peak_bytes(server.pid)
            base = address.partition("?")[0]
            row["run_paint_ms"] = paint(page, f"{base}runs/long-live/")
            began_s = time.monotonic()
            while (
                not page.evaluate("document.querySelectorAll('#facts div').length") and time.monotonic() < began_s + 30
            ):
                time.sleep(0.02)
            row["run_figures_ms"] = (time.monotonic() - began_s) * 1e3
            row["run_peak_bytes"] = read_peak_bytes(server.pid)
            began_s = time.monotonic()
            page.open_address(f"{base}runs/long/report", dark=False)
            row["report_ms"] = (time.monotonic() - began_s) * 1e3
            row["report_peak_bytes"] = read_peak_bytes(server.pid)
            row["problems"] = page.complaints(base)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)
    return rows


def paint(page: Page, address: str) -> float:
    """Milliseconds from asking for the page to its first paint with content, as Chromium measured it."""
    page.open_address(address, dark=False)
    deadline_s = time.monotonic() + 30
    while not (found := page.evaluate(FIRST_PAINT)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return float(found)


# ---- what an open page costs the training


TRAINING = """
import json, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 64), torch.randint(0, 8, (32,))
def train(steps):
    for _ in range(steps):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
train(500)
blocks = []
while len(blocks) < int(sys.argv[1]):
    start_ns = time.process_time_ns()
    train(500)
    blocks.append((time.process_time_ns() - start_ns) / 500)
print(json.dumps(blocks))
"""


def measure_overhead(folder: Path, pairs: int, blocks: int) -> list[dict[str, Any]]:
    """Pairs of trainings under hotloop, one of which is watched; which one comes first is drawn by lot."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    rows, draw = [], random.Random(7)
    with serve(folder) as (address, _):
        for number in range(pairs):
            row: dict[str, Any] = {"pair": number}
            for kind in draw.sample(["watched", "alone"], 2):
                row[f"{kind}_ns"] = train(folder, f"{kind}-{number}", address if kind == "watched" else None, blocks)
            rows.append(row)
            print(
                json.dumps({key: round(statistics.median(v)) if isinstance(v, list) else v for key, v in row.items()})
            )
    return rows


def train(folder: Path, name: str, address: str | None, blocks: int) -> list[float]:
    """CPU time per step of the training's process, in blocks of 500 steps, while a page follows it or none does."""
    command = [*HOTLOOP, "run", "--name", name, "--no-probe", "--no-deep", "-q", "--", sys.executable, "train.py"]
    over = threading.Event()
    heard: list[str] = []
    watcher = threading.Thread(target=watch, args=(address, name, over, heard)) if address is not None else None
    if watcher is not None:
        watcher.start()
    done = subprocess.run(
        [*command, str(blocks)], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True
    )
    over.set()
    if watcher is not None:
        watcher.join()
        if heard.count("running") < 3:
            raise RuntimeError(f"the page followed {name} for {len(heard)} events only: {heard}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def watch(address: str, name: str, over: threading.Event, heard: list[str]) -> None:
    """Follows the events of the run as an open page does; ``heard`` gains the state that each told."""
    host, _, query = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host)
    connection.request("GET", f"/{query}")
    cookie = {"Cookie": str(connection.getresponse().getheader("Set-Cookie")).partition(";")[0]}
    while not over.is_set():
        time.sleep(0.2)
        connection = http.client.HTTPConnection(host)
        connection.request("GET", f"/runs/{name}/events", headers=cookie)
        answer = connection.getresponse()
        while answer.status == 200 and (line := answer.readline()) and not over.is_set():
            heard += [json.loads(line[6:])["state"]] if line.startswith(b"data: ") else []
        connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["page", "overhead", "ranks"])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=12, help="of 500 steps each, per training")
    arguments = parser.parse_args()
    content: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.part == "page":
            for number in range(RUNS - 2):
                write_run(folder / ".hotloop" / f"run-{number:02}", STEPS, is_over=True)
            write_run(folder / ".hotloop" / "long", LONG_STEPS, is_over=True)
            write_run(folder / ".hotloop" / "long-live", LONG_STEPS, is_over=False)
            child = [*HOTLOOP, "report", str(folder / ".hotloop" / "long"), "--format", "html", "--exit-zero"]
            subprocess.run(child, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
            peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
            known = {"runs": RUNS, "steps": STEPS, "long_steps": LONG_STEPS, "long_report_child_peak_bytes": peak_bytes}
            content |= {**known, "rows": measure_page(folder)}
        elif arguments.part == "ranks":
            rows = measure_ranks(folder, arguments.ranks)
            by_kind = {
                kind: [row["cpu_ms"] for row in rows if row["refresh"] == kind]
                for kind in dict.fromkeys(row["refresh"] for row in rows)
            }
            medians = {kind: statistics.median(values) for kind, values in by_kind.items()}
            content |= {"ranks": arguments.ranks, "steps": RANK_STEPS, "median_cpu_ms": medians, "rows": rows}
            print(medians)
        else:
            rows = measure_overhead(folder, arguments.pairs, arguments.blocks)
            medians = [[statistics.median(row[kind]) for kind in ("watched_ns", "alone_ns")] for row in rows]
            content |= {
                "n": len(rows),
                "steps": 500 * arguments.blocks,
                "difference_ns": mean_interval([watched - alone for watched, alone in medians]),
                "ratio": mean_interval([watched / alone for watched, alone in medians]),
                "rows": rows,
            }
    (RESULTS / f"serve_{arguments.part}.json").write_text(draw_raw(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
