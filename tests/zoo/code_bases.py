"""Code bases that nobody has seen -> one pass, one table of raw results, and the table that a reader asks for.

A set is a folder with a ``scenarios.toml`` and one folder a code base, written by somebody who knows the rules' titles
alone. Each runs once under ``hotloop run --json``, probe included; then it and each form without one of its faults run
in turn (``REPAIRED=<switch>`` in the environment). Whatever comes is kept, failed and disturbed rows included.

    python tests/zoo/code_bases.py FOLDER --python SCRIPTS_PYTHON [--hotloop COMMAND]    # goes on where it stopped
    python tests/zoo/code_bases.py --show TABLE
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import harness
from accuracy import FORECAST_ERROR_RATIO, LOUD, draw_number, realised_saving, time_per_unit_ns
from fresh import describe_machine
from harness import Others, RunFailed
from scenarios import tomllib
from tables import read_table, write_table

TABLES = harness.ROOT / "benchmarks" / "results" / "code_bases"
SCRATCH = harness.ROOT / ".passes" / "code_bases"
PAIRS = 2
LIMIT_S = 400.0
UNKNOWN_RATIO = 0.05
SWITCH = "REPAIRED"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("set", type=Path, nargs="?")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--hotloop", default=str(Path(sys.executable).with_name("hotloop")))
    parser.add_argument("--show", type=Path)
    options = parser.parse_args(argv)
    if options.show is not None:
        print(draw(read_table(options.show).rows))
        return 0
    commit, folder = harness.describe_commit(), options.set.resolve()
    name = f"{folder.name}-{commit}"
    kept = SCRATCH / name
    kept.mkdir(parents=True, exist_ok=True)
    scenarios = tomllib.loads((folder / "scenarios.toml").read_text())["scenario"]
    python, hotloop = options.python.absolute(), tuple(options.hotloop.split())
    for part in (forecast, pair):  # what is said first, so that an interrupted pass has heard of all
        for one in scenarios:
            path = kept / f"{one['id']}.json"
            row = json.loads(path.read_text()) if path.exists() else {**one, "status": "not run"}
            before = row["status"]
            row = part(row, folder, python, hotloop)
            if row["status"] != before:
                harness._store(path, row)
                print(f"{row['status']}: {describe(row)}", flush=True)
    rows = [json.loads((kept / f"{one['id']}.json").read_text()) for one in scenarios]
    header = {
        "pass": "code_bases", "set": folder.name, "commit": commit, "machine": describe_machine(python),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": f"{PAIRS} runs a form in turn, under hotloop run {' '.join(harness.QUIET)}; the fastest of each",
    }  # fmt: skip
    write_table(TABLES / f"{name}.jsonl", header, rows)
    print(draw(rows))
    return 0


def forecast(row: dict[str, Any], folder: Path, python: Path, hotloop: Sequence[str]) -> dict[str, Any]:
    """What hotloop says of a code base, where that is not known yet."""
    if row["status"] != "not run":
        return row
    others, date = Others(), datetime.now(UTC).isoformat(timespec="seconds")
    try:
        report, wall_s = run(row, folder, python, hotloop, (), None, others)
        row |= keep(report) | {"wall_s": round(wall_s, 1), "status": "heard"}
    except RunFailed as failure:
        row |= {"status": "failed", "reason": str(failure)}
    return {**row, "date": date, "others_ratio": others.ratio()}


def pair(row: dict[str, Any], folder: Path, python: Path, hotloop: Sequence[str]) -> dict[str, Any]:
    """The code base and each of its forms without a fault, in turn."""
    if row["status"] != "heard":
        return row
    others = Others()
    forms: dict[str, list[float]] = {}
    switches = [fault["switch"] for fault in row.get("fault", ())]
    try:
        for _ in range(PAIRS if switches else 0):
            for form in ("", *switches):
                timed, _ = run(row, folder, python, hotloop, harness.QUIET, form or None, others)
                forms.setdefault(form, []).append(_unit_ns(timed, row))
    except RunFailed as failure:
        return {**row, "status": "failed", "reason": str(failure)}
    return {**row, "status": "done", "forms_ns": forms, "others_in_pairs_ratio": others.ratio()}


def run(
    one: Mapping[str, Any], folder: Path, python: Path, hotloop: Sequence[str], flags: Sequence[str],
    switch: str | None, others: Others,
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """The JSON report of one run in a fresh copy of the code base, and its wall time in seconds."""
    os.environ.pop(SWITCH, None)
    if switch is not None:
        os.environ[SWITCH] = switch
    return harness.run_copy(
        [*hotloop, "run", *flags],
        one["command"],
        folder / one["folder"],
        python=python,
        work=SCRATCH,
        timeout_s=LIMIT_S,
        others=others,
    )


def keep(report: Mapping[str, Any]) -> dict[str, Any]:
    """Of a report, what is judged and what a reader of the table asks for."""
    names = ("rule", "kind", "severity", "title", "saving", "where", "cost_ratio", "base")
    step = report.get("step") or {}
    return {
        "findings": [{name: one.get(name) for name in names} for one in report["findings"]],
        "explained": step.get("explained"),
        "breakdown": report.get("breakdown"),
        "steps": step.get("count"),
        "health": [one["message"] for one in report.get("health", ()) if one["level"] != "info"],
    }


def _unit_ns(report: Mapping[str, Any], one: Mapping[str, Any]) -> float:
    """Steady time per unit of work, as the author counts it."""
    step = report.get("step") or {}
    if step.get("mean_ns") and step.get("count"):
        return float(step["mean_ns"] * step["count"] / one["units_per_run"])
    unit_ns = time_per_unit_ns(report, one["unit"])
    if unit_ns is None:
        raise RunFailed("the report states no time per step")
    return unit_ns


# -- what came of it ---------------------------------------------------------------------------------------------------


def judge(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a finished row: whether the first fault is one of the planted ones (rule, and also place), how many were
    named, which faults are reported for sound ones, and for each fault the forecast and realized saving."""
    faults, findings = row.get("fault", []), row.get("findings", [])
    heard = [one for one in findings if one["kind"] == "fault"]
    first = heard[0] if heard else None
    forecasts = []
    for fault in faults:
        named = next((one for one in heard if _is_rule(one, fault)), None)
        realised = (
            realised_saving(row["forms_ns"][fault["switch"]], row["forms_ns"][""]) if row.get("forms_ns") else None
        )
        placed = any(_is_rule(one, fault) and _is_place(one, fault) for one in heard)
        forecast = {"fault": fault["rule"], "saving": named and named["saving"], "realised": realised}
        forecasts.append({**forecast, "named": named is not None, "placed": placed})
    return {
        "first": first and first["rule"],
        "right": any(_is_rule(first, fault) for fault in faults) if first else False,
        "right_place": any(_is_rule(first, f) and _is_place(first, f) for f in faults) if first else False,
        "loud": [one["rule"] for one in heard if one["severity"] in LOUD],
        "unknown": (row.get("explained") or {}).get("unknown_ratio"),
        "own": (row.get("explained") or {}).get("your_code_ratio"),
        "forecasts": forecasts,
    }


def _is_rule(finding: Mapping[str, Any], fault: Mapping[str, Any]) -> bool:
    return finding["rule"] in {fault["rule"], *fault.get("also", ())}


def _is_place(finding: Mapping[str, Any], fault: Mapping[str, Any]) -> bool:
    names = {name.rpartition(".")[2] for name in (fault["function"], *fault.get("functions", ()))}
    return any(
        str(where["file"]).endswith(fault["file"]) and str(where["function"]).rpartition(".")[2] in names
        for where in finding.get("where") or ()
    )


def describe(row: Mapping[str, Any]) -> str:
    if row["status"] not in ("heard", "done"):
        return f"{row['id']}: {row['status']}: {row.get('reason', '')}"
    told = judge(row)
    pairs = "; ".join(
        f"{f['fault']} {'named' if f['named'] else 'missed'}{'' if f['placed'] else ' (place no)'} "
        f"{_saving(f['saving'])} realized {draw_number(f['realised'])}"
        for f in told["forecasts"]
    )
    verdict = "right" if told["right"] else "wrong" if row.get("fault") else "sound"
    return (
        f"{row['id']}: first {told['first']} ({verdict}, place {'right' if told['right_place'] else 'no'}); "
        f"loud {','.join(told['loud']) or 'none'}; "
        f"unknown {draw_number(told['unknown'])} own {draw_number(told['own'])}; {pairs}"
    )


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every row, then the counts."""
    done = [(row, judge(row)) for row in rows if row["status"] in ("heard", "done")]
    planted = [(row, told) for row, told in done if row.get("fault")]
    sound = [(row, told) for row, told in done if not row.get("fault")]
    doubles = [told for row, told in planted if len(row["fault"]) == 2]
    pairs = [f for _, told in planted for f in told["forecasts"] if f["realised"] is not None]
    forecast = [f for f in pairs if f["saving"]]
    near = sum(abs(f["saving"]["mid_ratio"] - f["realised"]) <= FORECAST_ERROR_RATIO for f in forecast)
    inside = sum(f["saving"]["low_ratio"] <= f["realised"] <= f["saving"]["high_ratio"] for f in forecast)
    widths = [f["saving"]["high_ratio"] - f["saving"]["low_ratio"] for f in forecast]
    unknown = [told["unknown"] for _, told in done if told["unknown"] is not None]
    counts = (
        f"first right {sum(t['right'] for _, t in planted)} of {len(planted)}, with its place "
        f"{sum(t['right_place'] for _, t in planted)}",
        f"both faults named {sum(all(f['named'] for f in t['forecasts']) for t in doubles)} of {len(doubles)}",
        f"sound and quiet {sum(not t['loud'] for _, t in sound)} of {len(sound)}",
        f"unknown at most {UNKNOWN_RATIO:.0%}: {sum(one <= UNKNOWN_RATIO for one in unknown)} of {len(done)}",
        f"forecasts: {len(forecast)} of {len(pairs)} faults; within 0.10: {near}; inside: {inside}; median width "
        f"{draw_number(statistics.median(widths) if widths else None)}",
        f"not done: {sum(row['status'] != 'done' for row in rows)}",
    )
    return "\n".join((*map(describe, rows), "", *counts))


def _saving(saving: Mapping[str, Any] | None) -> str:
    if not saving:
        return "no forecast"
    return f"{saving['mid_ratio']:.2f} ({saving['low_ratio']:.2f} to {saving['high_ratio']:.2f}, {saving['basis']})"


if __name__ == "__main__":
    sys.exit(main())
