"""`hotloop image` on six Dockerfiles in the style of public training repositories -> forecast beside measured.

    python benchmarks/image_builds.py [--case NAME ...] [--fresh]   build what has no rows yet: minutes a case
    python benchmarks/image_builds.py --publish                     benchmarks/results/operations/image.json

Real buildah builds: each case as it is, with each fix and with the proven ones together; cold, after an edit of the
code, after an edit of the requirements. Nothing is fetched from outside (image_supplies.py). Rows of a pass lie under
.passes/image/ until they are published. Needs root, Debian, buildah, git and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import image_supplies
from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "results" / "operations" / "image.json"
PASS = ROOT / ".passes" / "image"
SUPPLIES = Path("/var/tmp/hotloop-proof-images")
"""Half a gigabyte of base images and packages, kept from case to case."""
CASES = ("code_first", "cuda_apt", "conda_like", "multi_stage", "big_context", "torch_twice")
LIMIT_S = 560


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--fresh", action="store_true", help="measure again what has rows")
    parser.add_argument("--publish", action="store_true")
    given = parser.parse_args(arguments)
    if given.publish:
        publish()
        return 0
    PASS.mkdir(parents=True, exist_ok=True)
    left = [case for case in given.case if given.fresh or not (PASS / f"{case}.json").exists()]
    with tempfile.TemporaryDirectory(prefix="image-proof-", dir="/var/tmp") as folder:
        measure(left, Path(folder))
    return 0


def measure(cases: Sequence[str], folder: Path) -> None:
    index, bases = SUPPLIES / "index", SUPPLIES / "bases"
    packages = make_supplies(index, bases)
    server = image_supplies.serve(index)
    try:
        for case in cases:
            context = folder / case
            image_supplies.make_context(case, context)
            load = os.getloadavg()[0]
            report = folder / f"{case}.json"
            words = [sys.executable, "-m", "hotloop", "image", str(context), "--work", str(folder)]
            words += ["--limit-s", str(LIMIT_S), "--leave-out", "--diff", "--json", str(report)]
            variables = {
                **os.environ,
                "CONTAINERS_STORAGE_CONF": str(bases / "storage.conf"),
                "PYTHONPATH": str(ROOT / "src"),
            }
            subprocess.run(words, check=True, env=variables)
            content = {
                "commit": describe_commit(),
                "machine": describe_machine(),
                "date": datetime.now(UTC).date().isoformat(),
                "load_before": round(load, 2),
                "packages": packages,
                "report": json.loads(report.read_text(encoding="utf-8")),
            }
            (PASS / f"{case}.json").write_text(json.dumps(content), encoding="utf-8")
            shutil.rmtree(context)
    finally:
        server.shutdown()


def make_supplies(index: Path, bases: Path) -> list[str]:
    """The packages of the base images; all is made once and kept for later cases."""
    made = SUPPLIES / "packages.json"
    if not made.exists():
        shutil.rmtree(SUPPLIES, ignore_errors=True)
        bases.mkdir(parents=True)
        image_supplies.make_index(index)
        made.write_text(json.dumps(image_supplies.make_bases(bases, index)), encoding="utf-8")
    packages: list[str] = json.loads(made.read_text(encoding="utf-8"))
    return packages


def describe_machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{models[0].partition(': ')[2]}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}"


def draw_rows(case: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a variant and scenario."""
    report = content["report"]
    before = report["variants"][0]["times"]
    rows = []
    for variant in report["variants"]:
        for scenario, times in variant["times"].items():
            samples_s = [round(one * 1e-9, 3) for one in times["samples_ns"]]
            forecast_ns = times["forecast_ns"]
            measured_s = sorted(samples_s)[len(samples_s) // 2] if samples_s else None
            before_s = sorted(before[scenario]["samples_ns"])[len(before[scenario]["samples_ns"]) // 2] * 1e-9
            rows.append(
                {
                    "case": case,
                    "variant": variant["id"],
                    "scenario": scenario,
                    "samples_s": samples_s,
                    "forecast_s": None if forecast_ns is None else round(forecast_ns * 1e-9, 3),
                    "error_ratio": None
                    if forecast_ns is None or not measured_s
                    else round(forecast_ns * 1e-9 / measured_s - 1, 4),
                    "speedup": None if not measured_s else round(before_s / measured_s, 3),
                    "cached": times["cached_count"],
                    "steps": times["steps_count"],
                    "verdict": variant["verdict"],
                    "reason": variant["reason"],
                    "contents": variant["contents"],
                    "saved_minutes_a_month": None
                    if variant["saved_ns_a_month"] is None
                    else round(variant["saved_ns_a_month"] / 60e9, 2),
                    "fixes": variant["fixes"],
                    "load_before": content["load_before"],
                    "commit": content["commit"],
                }
            )
    return rows


def publish() -> None:
    """The cases of the pass as one raw table, which names those that are missing.

    Rows of the table so far stay where their case was not measured again, each with its commit.
    """
    done = [case for case in CASES if (PASS / f"{case}.json").exists()]
    before = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {"rows": [], "diffs": []}
    kept = {name: [row for row in before[name] if row["case"] not in done] for name in ("rows", "diffs")}
    contents = {case: json.loads((PASS / f"{case}.json").read_text(encoding="utf-8")) for case in done}
    first = contents[done[0]]
    dates = {one["date"] for one in contents.values()} | set(before["date"].split(", ") if kept["rows"] else ())
    rows = [*kept["rows"], *(row for case, content in contents.items() for row in draw_rows(case, content))]
    table = {
        "commit": ", ".join(sorted({row["commit"] for row in rows})),
        "machine": first["machine"],
        "builder": first["report"]["builder"],
        "date": ", ".join(sorted(dates)),
        "n": "3 builds a row where the first took less than 60 s",
        "missing": [case for case in CASES if case not in {row["case"] for row in rows}],
        "base_packages": first["packages"],
        "rows": rows,
        "diffs": kept["diffs"]
        + [
            {"case": case, "variant": variant["id"], "diff": variant["diff"]}
            for case, content in contents.items()
            for variant in content["report"]["variants"]
            if variant["diff"]
        ],
    }
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(draw_raw(table), encoding="utf-8")
    print(f"wrote {TABLE.relative_to(ROOT)}")


WANTED_ERROR_RATIO = 0.25
NAMES = {"cold": "cold", "code": "code edit", "requirements": "requirements edit"}


def judge(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was asked: forecasts within a quarter, a code edit at least five times as fast, the same contents."""
    forecast = [row for row in rows if row["error_ratio"] is not None]
    code = [row for row in rows if row["scenario"] == "code" and row["verdict"] == "proven"]
    images = {(row["case"], row["variant"]): row["contents"] for row in rows if row["contents"] is not None}
    best = max(code, key=lambda row: row["speedup"])
    return {
        "within": sum(abs(row["error_ratio"]) <= WANTED_ERROR_RATIO for row in forecast),
        "forecasts": len(forecast),
        "worst": max(forecast, key=lambda row: abs(row["error_ratio"])),
        "median": statistics.median(abs(row["error_ratio"]) for row in forecast),
        "best": best,
        "same": sum(not one["differences_count"] for one in images.values()),
        "images": len(images),
    }


def draw_page(table: Mapping[str, Any]) -> str:
    """docs/image-builds.md: every row, case by case."""
    found = judge(table["rows"])
    worst, best = found["worst"], found["best"]
    lines = [
        "<!-- Generated by scripts/evidence.py from benchmarks/results/operations/image.json; do not edit. -->",
        "# Forecast and measured builds",
        "",
        f"`make image-proof`: {table['builder']}, {table['machine']}, {table['date']}, commit {table['commit']}; "
        f"{table['n']}. Forecasts were computed before the changed file was built.",
        "",
        f"Within 25 %: **{found['within']} of {found['forecasts']}** rows, median error {found['median']:.1%}, "
        f"worst {worst['error_ratio']:+.1%} ({worst['case']}, {worst['variant']}, {NAMES[worst['scenario']]}). Best on "
        f"the code edit: **{best['speedup']:.1f}x** ({best['case']}, {best['variant']}). Same contents: "
        f"**{found['same']} of {found['images']}** changed images; files that a fix is meant to leave out, and files "
        "that differ between two builds of the unchanged file, do not count.",
    ]
    if table["missing"]:
        lines += ["", f"**Not measured in this pass: {', '.join(table['missing'])}.**"]
    for case in dict.fromkeys(row["case"] for row in table["rows"]):
        rows = [row for row in table["rows"] if row["case"] == case]
        lines += ["", f"## {case}", "", f"Commit {rows[0]['commit']}; load before: {rows[0]['load_before']}.", ""]
        lines += ["| variant | scenario | forecast s | measured s | of builds | error | times as fast | cached | |"]
        lines += ["|---|---|---|---|---|---|---|---|---|", *(_draw_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _draw_row(row: Mapping[str, Any]) -> str:
    samples_s = row["samples_s"]
    measured = f"{statistics.median(samples_s):.2f}" if samples_s else "-"
    builds = f"{min(samples_s):.2f}..{max(samples_s):.2f}, n = {len(samples_s)}" if samples_s else "-"
    forecast = "-" if row["forecast_s"] is None else f"{row['forecast_s']:.2f}"
    error = "-" if row["error_ratio"] is None else f"{row['error_ratio']:+.1%}"
    speedup = "-" if row["speedup"] is None or row["variant"] == "as-is" else f"{row['speedup']:.2f}"
    verdict = "" if row["verdict"] == "baseline" else row["verdict"]
    cached = "-" if row["cached"] is None else f"{row['cached']} / {row['steps']}"
    return (
        f"| {row['variant']} | {NAMES[row['scenario']]} | {forecast} | {measured} | {builds} | {error} | {speedup} | "
        f"{cached} | {verdict} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
