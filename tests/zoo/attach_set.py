"""Trainings in known states -> what `hotloop attach` says of each, one row a script.

    python tests/zoo/attach_set.py tests/zoo/scored/2026-11-28-attach [NAME ...] --table FILE

Each folder has train.py, which prints READY once it is in its state, and truth.json: the verdict, the rank and a piece
of the line to blame, and what a careful person would accept as well. A table goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from hotloop.evidence.snapshot.proc import descendants, list_processes  # noqa: E402

READY_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--table", type=Path, required=True)
    options = parser.parse_args()
    if not options.table.exists():
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        head: dict[str, Any] = {"schema": "hotloop.attach-set/1", "date": date.today().isoformat(), "commit": commit}
        head |= {"machine": {"system": platform.platform(), "cores": len(os.sched_getaffinity(0))}}
        options.table.write_text(json.dumps(head) + "\n")
    known = {json.loads(line).get("name") for line in options.table.read_text().splitlines()}
    for folder in sorted(path for path in options.folder.iterdir() if (path / "truth.json").exists()):
        if folder.name in known or (options.names and folder.name not in options.names):
            continue
        row = score(folder)
        with options.table.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row["name"], row["wanted"], row["verdict"], row["is_verdict_right"], row["is_place_right"], flush=True)
    return 0


def score(folder: Path) -> dict[str, Any]:
    truth = json.loads((folder / "truth.json").read_text())
    with running(folder, truth) as training:
        began_s = time.monotonic()
        words = [str(Path(sys.executable).with_name("hotloop")), "attach", str(training.pid), "--json", "-", "-q"]
        done = subprocess.run(words, capture_output=True, text=True)
        took_s = time.monotonic() - began_s
    report = json.loads(done.stdout) if done.stdout else {"verdict": done.stderr[-200:], "culprits": [], "findings": []}
    lines = lines_with(folder, [truth.get("culprit_line_contains"), *(truth.get("also_lines") or [])])
    ranks = {truth.get("culprit_rank"), *(truth.get("also_ranks") or [])}
    places = [(one["rank"], one["line"]) for one in [*report["culprits"], *report["findings"][:1]]]
    return {
        "name": folder.name,
        "wanted": truth["verdict"],
        "verdict": report["verdict"],
        "is_verdict_right": report["verdict"] == truth["verdict"],
        "is_place_right": not lines or any((None in ranks or rank in ranks) and line in lines for rank, line in places),
        "places": places,
        "reason": report.get("reason"),
        "seconds": round(took_s, 1),
    }


def lines_with(folder: Path, pieces: list[str | None]) -> set[int]:
    """Numbers of the lines, in any file of the folder, that have one of the pieces of text."""
    return {
        number
        for path in folder.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(piece and piece in line for piece in pieces)
    }


@contextlib.contextmanager
def running(folder: Path, truth: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """The training once it is in its state; all of its processes are ended afterwards."""
    ranks = truth["ranks"]
    launcher = [sys.executable]
    if ranks > 1 and truth.get("launch") != "python":
        launcher = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(ranks)]
    training = subprocess.Popen(
        [*launcher, "train.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    )  # fmt: skip
    ready = threading.Event()

    def read(stream: IO[str]) -> None:
        for line in stream:
            if "READY" in line:
                ready.set()

    assert training.stdout is not None
    threading.Thread(target=read, args=(training.stdout,), daemon=True).start()
    try:
        if not ready.wait(READY_S):
            raise RuntimeError(f"{folder.name} was not in its state within {READY_S:.0f} s")
        time.sleep(float(truth.get("settle_s", 5)))
        yield training
    finally:
        for pid in (*descendants(training.pid, list_processes()), training.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        training.wait()


if __name__ == "__main__":
    sys.exit(main())
