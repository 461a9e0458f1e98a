"""Planted scenarios -> how near `hotloop run --strategy` brings the unmodified script to its healthy twin.

For every planted fault whose prescribed technique hotloop can apply: the script as it is, treated with exactly the fix
that its report prescribes, and the twin, interleaved until each side's fastest runs repeat. One result file per
scenario and commit; ``--summarize`` writes docs/treated.md from them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import harness
from accuracy import time_per_unit_ns
from harness import Bench, RunFailed, run_under_hotloop
from scenarios import Scenario

from hotloop.apply import TECHNIQUES
from hotloop.core.strategy import Choice, Strategy, strategy_to_toml

SCHEMA = "hotloop.treated/1"
ENOUGH_RATIO = 0.90
"""A treated run should reach so much of its twin's speed."""
MOST_ROUNDS = 3
LOSS = re.compile(r"loss\D{0,3}(-?\d+\.\d+(?:e-?\d+)?)")
OUT = harness.ROOT / "benchmarks" / "results" / "treated"
PAGE = harness.ROOT / "docs" / "treated.md"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="scenario ids or rules")
    parser.add_argument("--split", choices=("tuned", "blind", "all"), default="all")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument("--turn", type=Path, metavar="FILE", help="hold this lock during each training")
    parser.add_argument("--commit", help="name of the results (default: the checkout's)")
    parser.add_argument("--hotloop", default=str(Path(sys.executable).with_name("hotloop")))
    parser.add_argument("--summarize", action="store_true", help="write docs/treated.md")
    options = parser.parse_args(argv)
    if options.summarize:
        PAGE.write_text(draw_page(newest_results(OUT)))
        print(f"{PAGE} written")
        return 0
    bench = Bench(
        hotloop=tuple(options.hotloop.split()),
        out=OUT / (options.commit or harness.describe_commit()),
        commit=options.commit or harness.describe_commit(),
        machine=harness.describe_machine(),
        try_others=False,
        turn=options.turn,
    )
    for scenario in harness.choose_scenarios(options.split, options.only):
        if scenario.kind != "planted" or options.level not in scenario.levels:
            continue
        path = harness.result_path(bench.out, scenario, options.level)
        if path.exists() and not options.again:
            continue
        started = time.monotonic()
        result = treat_one(bench, scenario, options.level)
        harness._store(path, result)
        print(
            f"{scenario.id} level {options.level}: {describe(result)} ({time.monotonic() - started:.0f} s)", flush=True
        )
    return 0


def treat_one(bench: Bench, scenario: Scenario, level: int) -> dict[str, Any]:
    """The report's own prescription, applied; every figure of the three sides."""
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "scenario": scenario.id,
        "split": scenario.split,
        "rule": scenario.rules[0],
        "level": level,
        "unit": scenario.unit,
        "commit": bench.commit,
        "machine": dict(bench.machine),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    bench.others.forget()
    try:
        forecast = run_under_hotloop(bench, scenario, level, ())
        finding = next((f for f in forecast["findings"] if f["rule"] == scenario.rules[0]), None)
        fix = (finding or {}).get("fix")
        if fix is None:
            return result | {"status": "nothing prescribed"}
        result["fix"] = fix
        result["forecast"] = finding["saving"] if finding else None
        if fix["technique"] not in set(TECHNIQUES):
            return result | {"status": "for the reader"}
        result |= compare(bench, scenario, level, fix, harness.fix_arguments(scenario, forecast))
    except RunFailed as failure:
        return result | {"status": "failed", "reason": str(failure)}
    return result | {"others_ratio": bench.others.ratio()}


def compare(
    bench: Bench, scenario: Scenario, level: int, fix: Mapping[str, Any], fixed_arguments: Sequence[str]
) -> dict[str, Any]:
    """Faulty, treated and fixed runs in turn until each side's fastest run stands for it."""
    with tempfile.TemporaryDirectory(prefix="hotloop-treat-") as folder:
        path = Path(folder) / "fix.toml"
        settings = {key: value for key, value in fix["settings"].items() if value is not None}
        path.write_text(strategy_to_toml(Strategy(choices=(Choice(technique=fix["technique"], settings=settings),))))
        found = run_sides(
            bench,
            scenario,
            level,
            {"faulty": ((), ()), "treated": (("--strategy", str(path)), ()), "fixed": ((), fixed_arguments)},
        )
    best = {side: min(values) for side, values in found["times_ns"].items()}
    is_applied = any(one["status"] == "applied" for one in found["applied"])
    return {
        "status": "treated" if is_applied else "not applicable",
        **found,
        "speed_of_twin_ratio": round(best["fixed"] / best["treated"], 3),
        "saving_of_twin_ratio": round(1 - best["fixed"] / best["faulty"], 3),
        "saving_treated_ratio": round(1 - best["treated"] / best["faulty"], 3),
    }


def run_sides(
    bench: Bench,
    scenario: Scenario,
    level: int,
    sides: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    most_rounds: int = MOST_ROUNDS,
) -> dict[str, Any]:
    """Times per unit and last losses of every side (its hotloop flags and script arguments), in turn until they repeat.

    ``applied`` is what the techniques of the last side with a strategy said.
    """
    times: dict[str, list[float]] = {side: [] for side in sides}
    losses: dict[str, list[float | None]] = {side: [] for side in sides}
    applied: list[dict[str, Any]] = []
    while len(next(iter(times.values()))) < most_rounds and not harness.is_settled(*times.values()):
        for side, (flags, extra) in sides.items():
            report = run_under_hotloop(bench, scenario, level, (*harness.QUIET, *flags), extra=extra)
            time_ns = time_per_unit_ns(report, scenario.unit)
            if time_ns is None:
                raise RunFailed(f"the report states no time per {scenario.unit}")
            times[side].append(time_ns)
            found = LOSS.findall(report.get("stdout_tail", ""))
            losses[side].append(float(found[-1]) if found else None)
            if "--strategy" in flags:
                applied = [
                    {key: one[key] for key in ("technique", "status", "detail", "target", "numerics")}
                    for one in report["strategy"]
                ]
    return {"times_ns": times, "losses": losses, "applied": applied}


def describe(result: Mapping[str, Any]) -> str:
    if "speed_of_twin_ratio" not in result:
        return f"{result['status']}: {result.get('reason') or (result.get('fix') or {}).get('technique') or '-'}"
    why = next((one["detail"] for one in result["applied"] if one["status"] != "applied"), "")
    return (
        f"{result['status']} ({result['fix']['technique']}): {result['speed_of_twin_ratio']:.2f} of the twin's speed; "
        f"saved {result['saving_treated_ratio']:.2f}, twin {result['saving_of_twin_ratio']:.2f} {why}"
    )


def newest_results(out: Path, key: Callable[[Mapping[str, Any]], Any] | None = None) -> list[dict[str, Any]]:
    """Of every scenario and level (or whatever ``key`` says) the newest result."""
    found: dict[Any, dict[str, Any]] = {}
    for path in sorted(out.glob("*/*.json")):
        one = json.loads(path.read_text())
        name = (one["split"], one["scenario"], one["level"]) if key is None else key(one)
        if name not in found or one["date"] > found[name]["date"]:
            found[name] = one
    return [found[name] for name in sorted(found)]


def draw_page(results: Sequence[Mapping[str, Any]]) -> str:
    """docs/treated.md."""
    treated = [one for one in results if one["status"] == "treated"]
    reached = [one for one in treated if one["speed_of_twin_ratio"] >= ENOUGH_RATIO]
    dates = sorted({one["date"][:10] for one in results})
    machine = results[0]["machine"] if results else {}
    lines = [
        "# Faults treated from outside",
        "",
        "Made by `make treated`. The zoo's scripts with a planted fault, run unmodified with `hotloop run --strategy`",
        "and exactly the fix that their report prescribes, beside the same script with the fix written into it.",
        "Three sides in turn, 2 or 3 runs each until the two fastest of a side differ by less than 4 %; times are the",
        "fastest.",
        "",
        f"{', '.join(dates)} · {machine.get('cpu')}, {machine.get('cores')} cores, torch {machine.get('torch')} · "
        f"commits {', '.join(sorted({one['commit'] for one in results}))}",
        "",
        f"**{len(reached)} of {len(treated)} treated runs reach {ENOUGH_RATIO:.0%} of their twin's speed.** "
        f"{sum(one['status'] == 'not applicable' for one in results)} times the technique said that it does not apply, "
        f"{sum(one['status'] == 'for the reader' for one in results)} fixes are for the reader to make, in "
        f"{sum(one['status'] == 'nothing prescribed' for one in results)} runs the fault was not found, "
        f"{sum(one['status'] == 'failed' for one in results)} failed.",
        "",
        "| scenario | level | technique | of the twin's speed | saved | twin saved | last loss: as it is / treated "
        "| what happened |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        technique = (one.get("fix") or {}).get("technique", "-")
        if "speed_of_twin_ratio" in one:
            losses = one["losses"]
            said = "; ".join(f"{a['status']}: {a['detail']}" for a in one["applied"]) or "nothing was told"
            figures = (
                f"{one['speed_of_twin_ratio']:.2f} | {one['saving_treated_ratio']:.2f} | "
                f"{one['saving_of_twin_ratio']:.2f} | {losses['faulty'][0]} / {losses['treated'][0]} | {said}"
            )
        else:
            figures = f"- | - | - | - | {one['status']} {one.get('reason', '')}"
        lines.append(f"| {one['split']} {one['scenario']} | {one['level']} | {technique} | {figures} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
