"""What busy cores do to forecasts and to savings: known scripts, quiet and loaded in turn -> docs/under_load.md.

    python benchmarks/under_load.py [--limit N]   score what is left of both sets
    python benchmarks/under_load.py --summarize   draw the page again from its tables

The scripts are those of benchmarks/told_won/ and the planted ones of the last fresh set, all of them known. Their order
is drawn once (SEED), so that a pass that was cut short says no less of one set than of the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "zoo"))

import fresh  # noqa: E402
from tables import Table, read_table, write_table  # noqa: E402

SETS = (ROOT / "benchmarks" / "told_won", ROOT / "tests" / "zoo" / "scored" / "2026-11-23")
TABLES = ROOT / "benchmarks" / "results" / "under_load"
PAGE = ROOT / "docs" / "under_load.md"
SCRATCH = ROOT / ".passes" / "under_load"
SEED = 0
LOAD = 2
"""Busy processes during the loaded runs: as many as cores here."""
LEAST_RATIO = 0.05
"""The least forecast or realized saving on quiet cores for which its ratio to the loaded one means something."""
SIDES = ("quiet", "loaded")
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"

ABOUT = f"""\
Known scripts with a planted fault run alternately on quiet cores and under load. The load consists of {LOAD}
processes that are busy at random times (half of the time on average). On each side, one run under `hotloop run` gives
the forecast. One run of the script and one run of its fixed twin then give the realized saving. Each side has only
one run of each kind, so a single row proves little. The result is therefore the median over all scripts, with a 95%
interval from order statistics. Before the pass, we decided that load "halves" a saving if the median ratio's interval
contains 0.5 but not 1.

`make under-load` makes a pass. Ratios include only rows whose quiet value is at least {LEAST_RATIO:.2f}. If a
script's planted fault was not reported on a side, the script has no forecast on that side (-).
"""
HEAD = (
    "script", "planted", "forecast quiet", "forecast loaded", "realized quiet", "realized loaded",
    "CPU share of other programs (quiet / loaded)",
    "remarks",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", type=int, metavar="N", help="score N scripts now; the same command goes on later")
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("--doc", type=Path, default=PAGE)
    parser.add_argument("--summarize", action="store_true", help="draw the page again from its tables")
    options = parser.parse_args(argv)
    if not options.summarize:
        run_pass(options.tables, options.limit)
    options.doc.write_text(draw_page([read_table(path) for path in sorted(options.tables.glob("*.jsonl"))]))
    return 0


def load_scripts() -> list[tuple[Path, fresh.Fresh]]:
    """Every planted script of the sets with its folder, in the drawn order."""
    found = [(folder, one) for folder in SETS for one in fresh.load_set(folder) if one.rule]
    random.Random(SEED).shuffle(found)
    return found


def run_pass(tables: Path, limit: int | None) -> None:
    commit = fresh.harness.describe_commit()
    scripts = load_scripts()
    work = SCRATCH / commit
    rows = {one.id: json.loads(path.read_text()) for _, one in scripts if (path := work / f"{one.id}.json").exists()}
    pending = [(number, *one) for number, one in enumerate(scripts) if one[1].id not in rows]
    for number, folder, one in pending[:limit]:
        began_s = time.monotonic()
        rows[one.id] = row = score_one(_place(folder, work), one, SIDES if number % 2 == 0 else SIDES[::-1])
        fresh.harness._store(work / f"{one.id}.json", row)
        print(f"{draw_row(row)} ({time.monotonic() - began_s:.0f} s)", flush=True)
    header = {
        "pass": "under_load",
        "set": "told_won and 2026-11-23",
        "commit": commit,
        "machine": fresh.describe_machine(PYTHON),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": f"one forecast, one run of script and twin a side, in turn; loaded: {LOAD} busy processes",
    }
    write_table(tables / f"{commit}.jsonl", header, (rows.get(one.id) or fresh.not_run(one) for _, one in scripts))


def _place(folder: Path, work: Path) -> fresh.Pass:
    hotloop = (str(Path(sys.executable).with_name("hotloop")),)
    return fresh.Pass(folder=folder, python=PYTHON, hotloop=hotloop, work=work, others=fresh.Others())


def score_one(bench: fresh.Pass, one: fresh.Fresh, order: Sequence[str]) -> dict[str, Any]:
    row = fresh.not_run(one) | {"first": order[0]}
    try:
        for side in order:
            with busy(LOAD) if side == "loaded" else contextlib.nullcontext():
                row[side] = score_side(replace(bench, others=fresh.Others()), one)
        row["status"] = "done"
    except fresh.RunFailed as failure:
        row |= {"status": "failed", "reason": str(failure)}
    return row


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run extra processes, each busy for random times, half of the time on average."""
    workers = [multiprocessing.Process(target=_be_busy, args=(seed,), daemon=True) for seed in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _be_busy(seed: int) -> None:
    generator = random.Random(seed)
    while True:
        until_s = time.monotonic() + generator.expovariate(1.0)
        while time.monotonic() < until_s:
            sum(range(1000))
        time.sleep(generator.expovariate(1.0))


def score_side(bench: fresh.Pass, one: fresh.Fresh) -> dict[str, Any]:
    report, _ = fresh.run_script(bench, one, one.command, ())
    found = fresh.keep_report(report)
    for side, command in (("faulty", one.command), ("twin", one.twin_command)):
        report, wall_s = fresh.run_script(bench, one, command, fresh.harness.QUIET)
        found[side] = [fresh._timing(report, one, wall_s, side == "twin")]
    return found | {"others_ratio": bench.others.ratio()}


# -- the page ----------------------------------------------------------------------------------------------------------


def draw_page(tables: Sequence[Table]) -> str:
    """docs/under_load.md: every pass, newest first, every row of it."""
    lines = [
        "<!-- Generated by benchmarks/under_load.py from benchmarks/results/under_load; do not edit. -->",
        "# Forecasts under load",
        "",
        *ABOUT.splitlines(),
        "",
    ]
    if not tables:
        lines += ["No pass has been made.", ""]
    for table in sorted(tables, key=lambda one: one.header["date"], reverse=True):
        head = fresh.describe_pass(table, "known scripts")
        lines += [*head, *_draw_medians(table.rows), fresh.draw_cells(HEAD), fresh.draw_cells(["---"] * len(HEAD))]
        lines += [*(fresh.draw_cells(draw_row(row)) for row in table.rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def read_savings(row: Mapping[str, Any], side: str) -> tuple[float | None, float | None]:
    """Forecast and realized saving on one side of a row, as ratios of the time per unit; None where not known."""
    if row["status"] != "done":
        return None, None
    one = fresh.judge_row(row | row[side])
    return (None if one.saving is None else float(one.saving["mid_ratio"])), one.realised_ratio


def _draw_medians(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| loaded over quiet | rows | median | 95% interval | |", "|---|---|---|---|---|"]
    for name, index in (("forecast", 0), ("realized saving", 1)):
        pairs = [(read_savings(row, "quiet")[index], read_savings(row, "loaded")[index]) for row in rows]
        ratios = sorted(b / a for a, b in pairs if a is not None and b is not None and a >= LEAST_RATIO)
        lines.append(fresh.draw_cells((name, len(ratios), *_describe_median(ratios))))
    return [*lines, ""]


def _describe_median(ratios: Sequence[float]) -> tuple[str, str, str]:
    rank = median_rank(len(ratios))
    if rank is None:
        return "-", "-", "too few rows"
    low, high = ratios[rank], ratios[-1 - rank]
    verdict = (
        "halved" if low <= 0.5 <= high < 1.0 else "lower" if high < 1.0 else "higher" if low > 1.0 else "cannot tell"
    )
    return f"{statistics.median(ratios):.2f}", f"{low:.2f} to {high:.2f}", verdict


def median_rank(count: int, level: float = 0.95) -> int | None:
    """How many values are outside the interval of a median on each side; None where too few values have one.

    The largest k with P(fewer than k + 1 of ``count`` fair coins show heads) <= (1 - level) / 2.

    >>> median_rank(10), median_rank(30), median_rank(5)
    (1, 9, None)
    """
    below, found = 0.0, None
    for k in range(count):
        below += math.comb(count, k) / 2**count
        if below > (1 - level) / 2:
            break
        found = k
    return found


def draw_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    quiet, loaded = read_savings(row, "quiet"), read_savings(row, "loaded")
    told_won = [fresh.draw_number(one) for pair in zip(quiet, loaded, strict=True) for one in pair]
    shares = [fresh.draw_number(row.get(side, {}).get("others_ratio")) for side in SIDES]
    remarks = row["status"] + (f": {row['reason']}" if row.get("reason") else "") if row["status"] != "done" else "-"
    return row["id"], row["rule"], *told_won, " / ".join(shares), remarks


if __name__ == "__main__":
    sys.exit(main())
