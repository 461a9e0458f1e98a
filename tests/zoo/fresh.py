"""Scripts that nobody has seen -> one pass, one table of raw results, and docs/fresh.md.

A set is a folder with a ``scenarios.toml`` and its scripts, written by somebody who knows the rules' titles alone. Each
script runs once under ``hotloop run --json``, probe included; what was forecast is stored; then the faulty script and
its twin run in turn, 2 runs a side, or 3 where the fastest two of a side differ by 4 % or more. Whatever comes is
published, failed and disturbed rows included. Once scored, the scripts belong to the known set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import harness
from accuracy import (
    FORECAST_ERROR_RATIO,
    LOUD,
    draw_cells,
    draw_number,
    has_repeated,
    kind_of,
    median_saving,
    realised_saving,
    realised_spread,
    time_per_unit_ns,
    wilson_interval,
)
from harness import Others, RunFailed
from scenarios import tomllib
from tables import Table, read_table, write_table

TABLES = harness.ROOT / "benchmarks" / "results" / "fresh"
PAGE = harness.ROOT / "docs" / "fresh.md"
SCRATCH = harness.ROOT / ".passes" / "fresh"
"""Not in /tmp: checkpoints have to reach a real disk."""
UNITS = ("step", "sample", "token")
PAIRS = (2, 3)
VERSIONS = ("torch", "transformers", "accelerate", "lightning")
LOUD_SOUND_LIMIT = 1
RIGHT_RATIO = 0.90
FORECAST_RATIO = 0.75
WIDTH_RATIO = 0.20

ABOUT = """\
A fresh script is written for one pass by an author who sees the rules' titles and nothing else about hotloop. Each
script is scored once, and its row is published whatever the result is. After the pass, the script belongs to the
known set: we may have changed a rule because of the script's result, so a later pass over the script proves less.

`make fresh SET=folder` makes a pass. Each script runs once under `hotloop run --json`, and the forecast is stored.
Then the faulty script and its twin, which is the same training without the fault, run alternately. The realized
saving is 1 - twin / faulty, where each value is the time per unit of work over the steady steps of that side's
fastest run. The next column shows the saving based on the median runs. A side is settled if its two fastest runs
differ by less than 4%. `disturbed` means that other programs used more than a tenth of the machine's CPU time. A
planted fault that was not reported counts as a missed forecast, and a failed or missing row counts as a miss.

The set is a folder with its scripts and a `scenarios.toml` file, which has one table per script:

```toml
[[scenario]]
id = "slow-reader"
script = "reader.py"
command = ["{python}", "reader.py"]  # or ["{torchrun}", "--standalone", "--nproc-per-node", "2", "reader.py"]
twin_command = ["{python}", "reader.py", "--mended"]  # the same training without the fault; sound scripts have none
rule = "input-bound"  # what was planted; "" for a sound script
also = ["preprocessing-in-loop"]  # rules that name the same fault as well
unit = "sample"  # of useful work: sample, token or step
units_per_run = 7680  # of one run, as its author knows it; without it, the report's own count
framework = "plain"  # and ranks, steps, style, line, note: for readers
```

Set `twin_units_per_run` if the twin does a different amount of work, and `timeout_s` (400 by default) if a script
takes long. With `SCRIPTS_PYTHON=path`, another interpreter runs the scripts. With `LIMIT=n`, the pass stops after n
scripts; the same command continues the pass. No row is scored twice at the same commit.
"""


@dataclass(frozen=True)
class Fresh:
    """One script of a set. ``rule`` is empty for a sound one; ``also`` are rules that name the same fault as well.

    ``units_per_run`` counts the work of one run as its author knows it; None: the report's own count is used.
    """

    id: str
    script: str
    command: tuple[str, ...]
    twin_command: tuple[str, ...]
    rule: str
    also: tuple[str, ...]
    unit: str
    units_per_run: float | None
    twin_units_per_run: float | None
    timeout_s: float
    told: Mapping[str, Any]
    """Keys for readers: framework, ranks, steps, style, line, note."""


@dataclass(frozen=True)
class Pass:
    """Where and with what one pass is made."""

    folder: Path
    python: Path
    hotloop: tuple[str, ...]
    work: Path
    others: Others


def main(argv: Sequence[str] | None = None, draw: Callable[[Sequence[Table]], str] | None = None) -> int:
    """``draw`` makes the page of all passes; fresh scripts have draw_page."""
    draw, options = draw or draw_page, _parse(argv)
    if options.summarize:
        tables = [read_table(path) for path in sorted(options.tables.glob("*.jsonl"))]
        options.doc.write_text(draw(tables))
        print(f"{options.doc} written from {len(tables)} passes")
        return 0
    scenarios = load_set(options.set)
    commit = harness.describe_commit()
    name = f"{options.set.resolve().name}-{commit}"
    python = options.python.absolute()
    bench = Pass(
        folder=options.set.resolve(),
        python=python,
        hotloop=tuple(options.hotloop.split()),
        work=options.scratch.resolve() / name,
        others=Others(),
    )
    pending = [one for one in scenarios if not _is_done(bench, one)]
    print(f"{len(pending)} of {len(scenarios)} scripts to score in {bench.work}", flush=True)
    for number, one in enumerate(pending[: options.limit], 1):
        began_s = time.monotonic()
        row = score_one(bench, one, count_passes(options.tables, options.set / one.script))
        print(f"[{number}/{len(pending)}] {describe(row)} ({time.monotonic() - began_s:.0f} s)", flush=True)
    rows = [_stored(bench, one) or not_run(one) for one in scenarios]
    header = {
        "pass": options.tables.name,
        "set": options.set.resolve().name,
        "commit": commit,
        "machine": describe_machine(python),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": f"{PAIRS[0]} to {PAIRS[1]} runs a side in turn, under hotloop run {' '.join(harness.QUIET)}",
    }
    write_table(options.tables / f"{name}.jsonl", header, rows)
    options.doc.write_text(draw([read_table(path) for path in sorted(options.tables.glob("*.jsonl"))]))
    print(f"{options.tables / name}.jsonl and {options.doc} written", flush=True)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("set", type=Path, nargs="?", help="folder with scenarios.toml and its scripts")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter of the scripts")
    parser.add_argument("--hotloop", default=str(Path(sys.executable).with_name("hotloop")), help="the command to use")
    parser.add_argument("--limit", type=int, metavar="N", help="score N scripts now; the same command goes on later")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the passes")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder of rows while the pass runs")
    parser.add_argument("--doc", type=Path, default=PAGE)
    parser.add_argument("--summarize", action="store_true", help="draw the page again from its tables")
    options = parser.parse_args(argv)
    if not options.summarize and options.set is None:
        parser.error("name the folder of the set")
    return options


def load_set(folder: Path) -> tuple[Fresh, ...]:
    """The scripts of a set, in its file's order."""
    found = tuple(_fresh(table, folder) for table in tomllib.loads((folder / "scenarios.toml").read_text())["scenario"])
    ids = [one.id for one in found]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise ValueError(f"these ids appear twice in scenarios.toml: {', '.join(twice)}")
    return found


def _fresh(table: Mapping[str, Any], folder: Path) -> Fresh:
    rest = dict(table)
    unit = rest.pop("unit", "step")
    name = rest["id"]
    if unit not in UNITS:
        raise ValueError(f"scenario {name}: unit {unit!r} is none of {', '.join(UNITS)}")
    rule, twin = rest.pop("rule", ""), tuple(rest.pop("twin_command", ()))
    if bool(rule) != bool(twin):
        raise ValueError(f"scenario {name}: a planted fault has a rule and a twin_command, a sound script neither")
    if not (folder / rest["script"]).is_file():
        raise ValueError(f"scenario {name}: there is no script {rest['script']}")
    return Fresh(
        id=rest.pop("id"),
        script=rest.pop("script"),
        command=tuple(rest.pop("command")),
        twin_command=twin,
        rule=rule,
        also=tuple(rest.pop("also", ())),
        unit=unit,
        units_per_run=rest.pop("units_per_run", None),
        twin_units_per_run=rest.pop("twin_units_per_run", None),
        timeout_s=float(rest.pop("timeout_s", 400.0)),
        told=rest,
    )


def count_passes(tables: Path, script: Path) -> int:
    """How many passes have scored this very script before."""
    digest = _digest(script)
    rows = [row for path in tables.glob("*.jsonl") for row in read_table(path).rows]
    return sum(row.get("script_sha256") == digest and row["status"] != "not run" for row in rows)


def _digest(script: Path) -> str:
    return hashlib.sha256(script.read_bytes()).hexdigest()


def describe_machine(python: Path) -> dict[str, Any]:
    """This machine with the versions of the interpreter that runs the scripts."""
    code = (
        "import json, platform\nfrom importlib import metadata\nfound = {'python': platform.python_version()}\n"
        f"for name in {VERSIONS!r}:\n    try:\n        found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError:\n        pass\nprint(json.dumps(found))"
    )
    said = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout
    return harness.describe_machine() | json.loads(said)


def _row_path(bench: Pass, one: Fresh) -> Path:
    return bench.work / f"{one.id}.json"


def _stored(bench: Pass, one: Fresh) -> dict[str, Any] | None:
    path = _row_path(bench, one)
    return json.loads(path.read_text()) if path.exists() else None


def _is_done(bench: Pass, one: Fresh) -> bool:
    return (_stored(bench, one) or {}).get("status") in ("done", "failed")


def not_run(one: Fresh) -> dict[str, Any]:
    """The row of a script that the pass has not come to: it is printed like every other."""
    return {
        "id": one.id,
        "script": one.script,
        "rule": one.rule,
        "also": list(one.also),
        "unit": one.unit,
        **one.told,
        "status": "not run",
    }


def score_one(bench: Pass, one: Fresh, seen_count: int) -> dict[str, Any]:
    """Forecast, stored; then the pairs. An interrupted row keeps its forecast and goes on with the pairs."""
    path = _row_path(bench, one)
    row = _stored(bench, one) or not_run(one) | {
        "script_sha256": _digest(bench.folder / one.script),
        "seen_count": seen_count,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    bench.others.forget()
    try:
        if row["status"] == "not run":
            report, wall_s = run_script(bench, one, one.command, ())
            row |= keep_report(report) | {"status": "forecast", "forecast_run": _timing(report, one, wall_s, False)}
            row["others_in_forecast_ratio"] = bench.others.ratio()
            harness._store(path, row)
        if one.rule:
            row["faulty"], row["twin"] = run_pairs(bench, one)
        row["status"] = "done"
    except RunFailed as failure:
        row |= {"status": "failed", "reason": str(failure)}
    row["others_ratio"] = bench.others.ratio()
    row["disturbed"] = row["others_ratio"] is not None and row["others_ratio"] > harness.BUSY_RATIO
    harness._store(path, row)
    return row


def run_pairs(bench: Pass, one: Fresh) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs of the faulty script and of its twin, in turn."""
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    while not harness.is_settled(*([r["time_per_unit_ns"] for r in runs] for runs in sides), pairs=PAIRS):
        for runs, command, is_twin in ((sides[0], one.command, False), (sides[1], one.twin_command, True)):
            report, wall_s = run_script(bench, one, command, harness.QUIET)
            runs.append(_timing(report, one, wall_s, is_twin))
    return sides


def run_script(bench: Pass, one: Fresh, command: Sequence[str], flags: Sequence[str]) -> tuple[dict[str, Any], float]:
    """The JSON report of one run in a fresh copy of the set, and its wall time in seconds."""
    return harness.run_copy(
        [*bench.hotloop, "run", *flags],
        command,
        bench.folder,
        python=bench.python,
        work=bench.work,
        timeout_s=one.timeout_s,
        others=bench.others,
    )


def keep_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Of a report, what the page judges and what a reader of the table asks for."""
    findings = [
        {
            "rule": one["rule"],
            "kind": one["kind"],
            "severity": one["severity"],
            "title": one["title"],
            "saving": one.get("saving"),
            "technique": (one.get("fix") or {}).get("technique"),
        }
        for one in report["findings"]
    ]
    health = [one["message"] for one in report.get("health", ()) if one["level"] != "info"]
    return {"findings": findings, "combined_saving": report.get("combined_saving"), "health": health}


def _timing(report: Mapping[str, Any], one: Fresh, wall_s: float, is_twin: bool) -> dict[str, Any]:
    """Time per unit of one run: by its author's count of the work where there is one, else by the report's."""
    step = report.get("step") or {}
    units = one.twin_units_per_run if is_twin and one.twin_units_per_run is not None else one.units_per_run
    if units is not None and step.get("mean_ns") and step.get("count"):
        time_ns: float | None = step["mean_ns"] * step["count"] / units
    else:
        time_ns = time_per_unit_ns(report, one.unit)
    if time_ns is None:
        raise RunFailed(f"the report states no time per {one.unit}")
    keep = ("count", "steady_count", "unit", "units_per_step", "mean_ns", "median_ns", "excluded")
    kept = {name: step[name] for name in keep if name in step}
    return {"time_per_unit_ns": round(time_ns, 1), "wall_s": round(wall_s, 2), **kept}


# -- what came of it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """One finished row, judged. Ratios are None where they are not known."""

    row: Mapping[str, Any]
    first: str
    """Rule of the first finding of the planted rule's kind (of a fault, in a sound script), or ``none``."""
    is_right: bool
    loud_faults: tuple[str, ...]
    saving: Mapping[str, Any] | None
    realised_ratio: float | None
    median_realised_ratio: float | None
    spread_ratio: float | None
    is_settled: bool

    @property
    def error_ratio(self) -> float | None:
        if self.saving is None or self.realised_ratio is None:
            return None
        return float(self.saving["mid_ratio"]) - self.realised_ratio

    @property
    def is_near(self) -> bool:
        return self.error_ratio is not None and abs(self.error_ratio) <= FORECAST_ERROR_RATIO

    @property
    def is_inside(self) -> bool:
        if self.saving is None or self.realised_ratio is None:
            return False
        return bool(self.saving["low_ratio"] <= self.realised_ratio <= self.saving["high_ratio"])


def judge_row(row: Mapping[str, Any]) -> Scored:
    accepted = {row["rule"], *row["also"]}
    kind = kind_of(row["rule"]) if row["rule"] else "fault"
    first = next((one["rule"] for one in row["findings"] if one["kind"] == kind), "none")
    named = next((one for one in row["findings"] if row["rule"] and one["rule"] in accepted), None)
    faulty, twin = ([run["time_per_unit_ns"] for run in row.get(side, ())] for side in ("faulty", "twin"))
    return Scored(
        row=row,
        first=first,
        is_right=bool(row["rule"]) and first in accepted,
        loud_faults=tuple(one["rule"] for one in row["findings"] if one["kind"] == "fault" and one["severity"] in LOUD),
        saving=named["saving"] if named else None,
        realised_ratio=realised_saving(twin, faulty),
        median_realised_ratio=median_saving(twin, faulty),
        spread_ratio=realised_spread(twin, faulty),
        is_settled=bool(faulty and twin) and has_repeated(faulty, twin),
    )


def describe(row: Mapping[str, Any]) -> str:
    """One line for the person who watches."""
    if row["status"] != "done":
        return f"{row['id']}: {row['status']}: {row.get('reason', '')}"
    one = judge_row(row)
    if not row["rule"]:
        return f"{row['id']}: sound; loud faults: {', '.join(one.loud_faults) or 'none'}"
    told = "none" if one.saving is None else f"{one.saving['mid_ratio']:.2f}"
    return f"{row['id']}: {row['rule']}, found {one.first}; forecast {told}, realized {draw_number(one.realised_ratio)}"


def draw_page(tables: Sequence[Table]) -> str:
    """docs/fresh.md: every pass, newest first, every row of it."""
    lines = [
        "<!-- Generated by tests/zoo/fresh.py from benchmarks/results/fresh; do not edit. -->",
        "# Fresh scripts",
        "",
        *ABOUT.splitlines(),
        "",
    ]
    if not tables:
        lines += ["No pass has been made.", ""]
    for table in sorted(tables, key=lambda one: one.header["date"], reverse=True):
        lines += _draw_pass(table)
    return "\n".join(lines).rstrip() + "\n"


def _draw_pass(table: Table) -> list[str]:
    rows = table.rows
    known = sum(row.get("seen_count", 0) > 0 for row in rows)
    kind = "fresh" if not known else f"{known} of {len(rows)} scripts known: scored before"
    done = [judge_row(row) for row in rows if row["status"] == "done"]
    return [*describe_pass(table, kind), *_draw_rates(rows, done), *_draw_planted(rows), *_draw_sound(rows)]


def describe_pass(table: Table, kind: str) -> list[str]:
    """Set, date, commit and machine of a pass, and how many of its rows are in which state."""
    head, rows = table.header, table.rows
    machine = head["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", *VERSIONS) if name in machine)
    disturbed = sum(bool(row.get("disturbed")) for row in rows)
    states = {state: sum(row["status"] == state for row in rows) for state in ("done", "failed", "not run", "forecast")}
    told = ", ".join(f"{count} {state}" for state, count in states.items() if count)
    return [
        f"## {head['set']}, {head['date'][:10]} ({kind})",
        "",
        f"Commit {head['commit']}; {machine['cpu']}, {machine['cores']} cores, {versions}. The pass has {len(rows)} "
        "scripts: "
        f"{told}; {disturbed} disturbed.",
        "",
    ]


def _draw_rates(rows: Sequence[Mapping[str, Any]], done: Sequence[Scored]) -> list[str]:
    """The promised rates, over all rows of the pass: a failed or missing row counts as a miss."""
    planted = [one for one in done if one.row["rule"]]
    planted_count = sum(bool(row["rule"]) for row in rows)
    sound_count = len(rows) - planted_count
    loud = sum(bool(one.loud_faults) for one in done if not one.row["rule"])
    unknown = sound_count - sum(not one.row["rule"] for one in done)
    widths = [one.saving["high_ratio"] - one.saving["low_ratio"] for one in planted if one.saving]
    width = statistics.median(widths) if widths else None
    forecast = len([one for one in planted if one.saving is not None and one.realised_ratio is not None])
    near, inside = sum(one.is_near for one in planted), sum(one.is_inside for one in planted)
    hits = (
        ("scripts whose first fault is the planted one", sum(one.is_right for one in planted), planted_count,
         RIGHT_RATIO),
        ("forecasts within 0.10 of the realized saving", near, planted_count, FORECAST_RATIO),
        ("realized savings inside the forecast range", inside, planted_count, FORECAST_RATIO),
    )  # fmt: skip
    lines = ["| what | count | of | 95% interval | wanted | |", "|---|---|---|---|---|---|"]
    for name, hit, count, wanted in hits:
        low, high = wilson_interval(hit, count)
        verdict = "met" if count and hit / count >= wanted else "missed"
        lines.append(f"| {name} | {hit} | {count} | {low:.0%} to {high:.0%} | {wanted:.0%} | {verdict} |")
    low, high = wilson_interval(loud, sound_count)
    verdict = "met" if loud + unknown <= LOUD_SOUND_LIMIT else "missed"
    lines.append(
        f"| sound scripts with a fault of high or medium severity | {loud} | {sound_count} | {low:.0%} to {high:.0%} | "
        f"at most {LOUD_SOUND_LIMIT} | {verdict} |"
    )
    settled = sum(one.is_settled for one in planted)
    by_medians = sum(
        one.saving is not None
        and one.median_realised_ratio is not None
        and abs(one.saving["mid_ratio"] - one.median_realised_ratio) <= FORECAST_ERROR_RATIO
        for one in planted
    )
    return [
        *lines,
        "",
        f"The median width of the forecast ranges is {draw_number(width)} (wanted: at most {WIDTH_RATIO:.2f}). For "
        f"{forecast} planted faults, the report stated a forecast. Of these forecasts, {near} are within 0.10 of the "
        f"realized saving if the saving is based on the fastest runs, and {by_medians} if it is based on the median "
        f"runs. In {inside} cases, the realized saving is inside the forecast range. In {settled} of {len(planted)} "
        "pairs, both sides settled.",
        "",
    ]


def _draw_planted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = (
        "script", "style", "framework", "ranks", "planted", "first of its kind", "severities", "low", "mid", "high",
        "basis", "realized", "realized (medians)", "spread", "n", "error", "inside", "times scored", "remarks",
    )  # fmt: skip
    lines = ["### Planted", "", draw_cells(head), draw_cells(["---"] * len(head))]
    for row in rows:
        if not row["rule"]:
            continue
        if row["status"] != "done":
            lines.append(draw_cells((*_names(row), *["-"] * (len(head) - 7), *_remarks(row, None))))
            continue
        one = judge_row(row)
        saving = one.saving or {}
        told = [draw_number(saving.get(name)) for name in ("low_ratio", "mid_ratio", "high_ratio")]
        realised = [draw_number(x) for x in (one.realised_ratio, one.median_realised_ratio, one.spread_ratio)]
        severities = ", ".join(f"{f['rule']} {f['severity']}" for f in row["findings"][:3]) or "none"
        inside = "-" if one.saving is None else "yes" if one.is_inside else "no"
        lines.append(
            draw_cells(
                (
                    *_names(row), one.first, severities, *told, saving.get("basis", "-"), *realised,
                    len(row["faulty"]), draw_number(one.error_ratio, "+.2f"), inside, *_remarks(row, one),
                )
            )
        )  # fmt: skip
    return [*lines, ""]


def _draw_sound(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = (
        "script", "style", "framework", "ranks", "high or medium faults", "other findings", "times scored", "remarks",
    )  # fmt: skip
    lines = ["### Sound", "", draw_cells(head), draw_cells(["---"] * len(head))]
    for row in rows:
        if row["rule"]:
            continue
        names = _names(row)[:-1]
        if row["status"] != "done":
            lines.append(draw_cells((*names, "-", "-", *_remarks(row, None))))
            continue
        one = judge_row(row)
        loud = [f for f in row["findings"] if f["kind"] == "fault" and f["severity"] in LOUD]
        rest = [f for f in row["findings"] if f not in loud]
        told = [", ".join(f"{f['rule']} {f['severity']}" for f in part) or "none" for part in (loud, rest)]
        lines.append(draw_cells((*names, *told, *_remarks(row, one))))
    return [*lines, ""]


def _names(row: Mapping[str, Any]) -> tuple[object, ...]:
    planted = " or ".join((row["rule"], *row["also"]))
    return row["id"], row.get("style", "-"), row.get("framework", "-"), row.get("ranks", 1), planted


def _remarks(row: Mapping[str, Any], one: Scored | None) -> tuple[str, str]:
    """How often this very script has been scored by then, and what a reader should know of the row."""
    return "-" if row["status"] == "not run" else str(row["seen_count"] + 1), draw_remarks(row, one)


def draw_remarks(row: Mapping[str, Any], one: Scored | None) -> str:
    """What a reader should know of a row; ``one`` is None where it is not finished."""
    remarks = []
    if one is None:
        remarks.append(row["status"] + (f": {row['reason']}" if row.get("reason") else ""))
    elif row["rule"] and not one.is_settled:
        remarks.append("not settled")
    if row.get("disturbed"):
        remarks.append("disturbed")
    return ", ".join(remarks) or "-"


if __name__ == "__main__":
    sys.exit(main())
