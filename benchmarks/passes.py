"""What all benchmarks share: cases measured one after another, kept in one table with machine, date and commit.

``measure`` is the command line of a benchmark. A table is JSON: what holds for all rows first, then one row a line. A
row that was measured at another commit, day or machine than the last one says so itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
QUIET_LOAD = 0.5
"""Processes that want a core in addition to a benchmark, from which it says that the machine is busy."""
WHERE = ("commit", "date", "machine")
T_975 = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)
"""Student's t for an interval of 95 %, of 1, 2 ... degrees of freedom."""
Row = dict[str, Any]


def measure(
    about: str | None,
    table: str,
    cases: Mapping[str, Callable[[], Row | list[Row]]],
    head: Mapping[str, Any] | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """The command line ``[CASE ...] [--fresh] [--limit S]``: measures what a table lacks, and keeps it after each case.

    ``table`` is a file below benchmarks/results; ``cases`` gives the rows of each case by its name. Exit code 1 where a
    row says that it ``failed``.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="these, even where the table has them")
    parser.add_argument("--fresh", action="store_true", help="forget the rows of the table")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="S", help="begin no case after S seconds")
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - set(cases)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    path = RESULTS / table
    rows = [] if options.fresh or not path.exists() else read_rows(json.loads(path.read_text(encoding="utf-8")))
    done = {row["case"] for row in rows}
    began_s = time.monotonic()
    for case in options.cases or [case for case in cases if case not in done]:
        if time.monotonic() - began_s > options.limit:
            break
        load = round(os.getloadavg()[0], 2)
        if load > QUIET_LOAD:
            print(f"{case}: the machine is busy (load {load})", file=sys.stderr)
        found = cases[case]()
        where = {"load": load, "commit": describe_commit(), "date": date.today().isoformat()}
        where["machine"] = describe_machine()
        rows = [row for row in rows if row["case"] != case]
        for row in found if isinstance(found, list) else [found]:
            rows.append({"case": case, **where, **row})
            print(json.dumps(row), flush=True)
        order = list(cases)
        rows.sort(key=lambda row: order.index(row["case"]) if row["case"] in order else len(order))
        write_table(path, rows, head)
    print(f"{path}: {len(rows)} rows. Its pages: python scripts/evidence.py --write")
    return int(any(row.get("failed") for row in rows))


def read_rows(table: Mapping[str, Any]) -> list[Row]:
    """The rows of a table, each with its commit, date and machine."""
    return [{**{key: table[key] for key in WHERE}, **row} for row in table["rows"]]


def write_table(path: Path, rows: Sequence[Row], head: Mapping[str, Any] | None = None) -> None:
    """Replaces the file in one move. The commit, date and machine of the last measured row come before all rows."""
    newest = max(rows, key=lambda row: str(row["date"]))
    place = {key: newest[key] for key in WHERE}
    kept = [{key: value for key, value in row.items() if key not in place or place[key] != value} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(draw_raw({**place, **(head or {}), "rows": kept}), encoding="utf-8")
    half.replace(path)


def describe_commit() -> str:
    """Short hash of the checkout, with ``-dirty`` where its sources differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    words = ("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    changed = subprocess.run([*git, *words], capture_output=True, text=True, check=False)
    return (head.stdout.strip() or "no-commit") + ("-dirty" if changed.stdout.strip() else "")


def describe_machine() -> Row:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {
        "cpu": facts.get("model name", "unknown"),
        "cores": len(os.sched_getaffinity(0)),
        "amx_bf16": "amx_bf16" in facts.get("flags", "").split(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def describe_place(machine: Mapping[str, Any]) -> str:
    return f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}"


def draw_raw(content: Mapping[str, Any]) -> str:
    """The text of a table.

    >>> print(draw_raw({"date": "2026-01-01", "rows": [{"a": 1}, {"a": 2}]}), end="")
    {
    "date": "2026-01-01",
    "rows": [
    {"a": 1},
    {"a": 2}
    ]
    }
    """
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_draw(value)}" for key, value in content.items()) + "\n}\n"


def _draw(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
    return json.dumps(value)


# Timing.


def alternate(
    works: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    around: Callable[[], Any] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each work in each round, in an order drawn for each round. The first round warms up.

    ``around`` is called before and after each, such as a barrier of all ranks.
    """
    draw = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name in draw.sample(list(works), len(works)):
            around()
            began = clock()
            works[name]()
            took_s = clock() - began
            around()
            if turn:
                found[name].append(took_s)
    return found


def ratio_of(over: Sequence[float], under: Sequence[float]) -> Row:
    """The geometric mean of the rounds' ratios, with its 95 % interval."""
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    n = len(logs)
    half = T_975[n - 2] * statistics.stdev(logs) / math.sqrt(n)
    mean = statistics.fmean(logs)
    ends = {"ratio": mean, "low": mean - half, "high": mean + half}
    return {**{name: math.exp(one) for name, one in ends.items()}, "n": n, "unit": "rounds of alternating blocks"}


def run_ranks(words: Sequence[str], limit_s: float = 240, count: int = 2) -> list[Any]:
    """``python words... OUT`` on each rank on this machine, one thread each -> the JSON that each wrote to OUT."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{rank}.json" for rank in range(count)]
        shared = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 20_000)}
        ranks = [
            subprocess.Popen(
                [sys.executable, *words, str(out)],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank, out in enumerate(outs)
        ]
        try:
            codes = [one.wait(limit_s) for one in ranks]
        finally:
            for one in ranks:
                one.kill()
        if any(codes):
            raise RuntimeError(f"{' '.join(words)}: the ranks ended with {codes}")
        return [json.loads(out.read_text(encoding="utf-8")) for out in outs]
