"""`hotloop image` on six Dockerfiles in the style of public training repositories -> forecast beside measured.

    python benchmarks/image_builds.py [CASE ...]    what the table lacks, or these again: minutes a case

Real buildah builds: each case as it is, with each fix and with the proven ones together; cold, after an edit of the
code, after an edit of the requirements. Nothing is fetched from outside (image_supplies.py). Needs root, Debian,
buildah, git and a C compiler.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import image_supplies
import passes

SUPPLIES = Path("/var/tmp/hotloop-proof-images")
"""Half a gigabyte of base images and packages, kept from case to case."""
CASES = ("code_first", "cuda_apt", "conda_like", "multi_stage", "big_context", "torch_twice")
LIMIT_S = 560


def measure(case: str) -> list[dict[str, Any]]:
    """The rows of a case, from the report of `hotloop image` on a fresh copy of it."""
    index, bases = SUPPLIES / "index", SUPPLIES / "bases"
    make_supplies(index, bases)
    server = image_supplies.serve(index)
    variables = {**os.environ, "CONTAINERS_STORAGE_CONF": str(bases / "storage.conf")}
    try:
        with tempfile.TemporaryDirectory(prefix="image-builds-", dir="/var/tmp") as name:
            folder = Path(name)
            image_supplies.make_context(case, folder / case)
            words = [sys.executable, "-m", "hotloop", "image", str(folder / case), "--work", name, "--leave-out"]
            words += ["--limit-s", str(LIMIT_S), "--json", str(folder / "report.json")]
            subprocess.run(words, check=True, env=variables)
            return draw_rows(json.loads((folder / "report.json").read_text(encoding="utf-8")))
    finally:
        server.shutdown()


def make_supplies(index: Path, bases: Path) -> None:
    """Made once, and kept for later cases."""
    if not (SUPPLIES / "made").exists():
        shutil.rmtree(SUPPLIES, ignore_errors=True)
        bases.mkdir(parents=True)
        image_supplies.make_index(index)
        image_supplies.make_bases(bases, index)
        (SUPPLIES / "made").touch()


def draw_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a variant and scenario."""
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
                }
            )
    return rows


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
    rows = passes.read_rows(table)
    found = judge(rows)
    machines, dates, commits = (
        ", ".join(sorted({one(row) for row in rows}))
        for one in (
            lambda row: f"{row['machine']['cpu']}, {row['machine']['cores']} cores",
            lambda row: row["date"],
            lambda row: row["commit"],
        )
    )
    worst, best = found["worst"], found["best"]
    lines = [
        "<!-- Generated by scripts/evidence.py from benchmarks/results/image.json; do not edit. -->",
        "# Forecast and measured builds",
        "",
        f"`make image-proof`: {table['builder']}, {machines}, {dates}, commit {commits}; 3 builds a row where the "
        "first took less than 60 s. Forecasts were computed before the changed file was built.",
        "",
        f"Within 25 %: **{found['within']} of {found['forecasts']}** rows, median error {found['median']:.1%}, "
        f"worst {worst['error_ratio']:+.1%} ({worst['case']}, {worst['variant']}, {NAMES[worst['scenario']]}). Best on "
        f"the code edit: **{best['speedup']:.1f}x** ({best['case']}, {best['variant']}). Same contents: "
        f"**{found['same']} of {found['images']}** changed images; files that a fix is meant to leave out, and files "
        "that differ between two builds of the unchanged file, do not count.",
    ]
    if missing := set(CASES) - {row["case"] for row in rows}:
        lines += ["", f"**Not measured: {', '.join(sorted(missing))}.**"]
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        lines += ["", f"## {case}", "", f"Commit {own[0]['commit']}; load before: {own[0]['load']}.", ""]
        lines += ["| variant | scenario | forecast s | measured s | of builds | error | times as fast | cached | |"]
        lines += ["|---|---|---|---|---|---|---|---|---|", *(_draw_row(row) for row in own)]
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


def main() -> int:
    shown = subprocess.run(["buildah", "--version"], capture_output=True, text=True, check=True).stdout.split()
    cases = {case: partial(measure, case) for case in CASES}
    return passes.measure(__doc__, "image.json", cases, {"builder": f"buildah {shown[2]}"})


if __name__ == "__main__":
    sys.exit(main())
