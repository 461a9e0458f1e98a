"""Planted scenarios and their healthy twins -> what `hotloop tune` proves on them, beside the fix written by hand.

For every planted fault that a technique treats: `hotloop tune` on the faulty script, then the script as it is, under
the strategy that tune wrote, and its twin, interleaved. Then `hotloop tune` on the twin, and on the healthy trainings:
what it recommends there is measured likewise. One result file per training and commit; what is there is not run again.
``--summarize`` writes docs/tuned.md. Four minutes a training with the default budget, at most, plus the runs
beside each other: six hours for all at level 2 (39 faulty scripts, as many twins, 40 healthy ones), less where nothing
is to be tried.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import harness
import treat
from harness import Bench, RunFailed, run_command
from scenarios import Scenario

from hotloop.apply import TECHNIQUES
from hotloop.core.findings import Safety
from hotloop.core.strategy import load_strategy

SCHEMA = "hotloop.tune-zoo/1"
PARTS = ("faulty", "twin", "healthy")
ENOUGH_RATIO = 0.90
"""A tuned training should reach so much of its twin's speed."""
NARROW_RATIO = 0.20
"""A forecast's range should be no wider, in the median."""
LEAST_GAIN_RATIO = 0.01
"""What is recommended should save at least so much when it is measured again."""
SILENT, WINS, WRONG = "nothing", "recommended what wins", "recommended what does not win"
LEAST_PAIRS = 4
"""Pairs behind a speed-up that a forecast is held against."""
SUBSET_SOUND_COUNT = 6
"""Trainings of a subset in which there should be nothing to recommend: half of them twins."""
SLACK_S = 120.0
"""So much longer than its budget tune may take before it is ended: the observed baseline, the probe, one process."""
OUT = harness.ROOT / "benchmarks" / "results" / "tuned"
PAGE = harness.ROOT / "docs" / "tuned.md"


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what runs is ended with it
    if options.summarize:
        results = treat.newest_results(OUT, key=lambda one: (one["part"], one["split"], one["scenario"], one["level"]))
        if not results:
            print(f"no results in {OUT}: run `make tune-zoo` first", file=sys.stderr)
            return 2
        PAGE.write_text(draw_page(results))
        print(f"{PAGE} written from {len(results)} results")
        return 0
    commit = options.commit or harness.describe_commit()
    bench = Bench(
        hotloop=tuple(options.hotloop.split()),
        out=OUT / commit,
        commit=commit,
        machine=harness.describe_machine(),
        try_others=False,
        turn=options.turn,
    )
    scenarios = harness.choose_scenarios(options.split, options.only)
    todo = [
        (part, scenario, level)
        for part in (PARTS if options.part == "all" else (options.part,))
        for scenario in (choose_subset(scenarios, options.level)[part] if options.subset else scenarios)
        for level in _levels(part, scenario, options.level)
    ]
    pending = [one for one in todo if options.again or not _is_done(result_path(bench.out, *one))]
    if options.list:
        for part, scenario, level in todo:
            done = "" if (part, scenario, level) in pending else "  done"
            print(f"{part:8} {scenario.split:6} {scenario.id:22} level {level}{done}")
        return 0
    print(f"{len(pending)} trainings to tune in {bench.out.name}, up to {options.budget} s each", flush=True)
    for number, (part, scenario, level) in enumerate(pending[: options.limit], 1):
        began_s = time.monotonic()
        if options.again:
            result_path(bench.out, part, scenario, level).unlink(missing_ok=True)
        result = tune_one(bench, part, scenario, level, options.budget, options.rounds)
        took_s = time.monotonic() - began_s
        print(f"[{number}/{len(pending)}] {part} {scenario.id}: {describe(result)} ({took_s:.0f} s)", flush=True)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="scenario ids or rules, as in *input*")
    parser.add_argument("--split", choices=("tuned", "blind", "all"), default="all")
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--budget", type=float, default=180.0, metavar="SECONDS", help="of each tuning (default 180)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side afterwards, at most (default 3)")
    parser.add_argument(
        "--subset",
        action="store_true",
        help=f"one faulty script for each rule with a technique, {SUBSET_SOUND_COUNT} twins and healthy ones",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="stop after N trainings")
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument("--turn", type=Path, metavar="FILE", help="hold this lock during each training")
    parser.add_argument("--commit", help="name of the results (default: the checkout's)")
    parser.add_argument("--hotloop", default=str(Path(sys.executable).with_name("hotloop")))
    parser.add_argument("--list", action="store_true", help="print what there is to run")
    parser.add_argument("--summarize", action="store_true", help="write docs/tuned.md")
    return parser.parse_args(argv)


def _levels(part: str, scenario: Scenario, level: int) -> tuple[int, ...]:
    if part == "healthy":
        return (0,) if scenario.kind == "healthy" else ()
    # A shaped link needs namespaces that tune's command would have to make anew for each of its processes.
    is_wanted = scenario.kind == "planted" and level in scenario.levels and not scenario.link_rates
    return (level,) if is_wanted and treating(scenario.rules[0]) else ()


def treating(rule: str) -> tuple[str, ...]:
    """Ids of the techniques that treat the rule and that tune may try."""
    return tuple(one.id for one in TECHNIQUES.values() if rule in one.treats and one.safety is not Safety.SHOW)


def choose_subset(scenarios: Sequence[Scenario], level: int) -> dict[str, tuple[Scenario, ...]]:
    """A part of the zoo by a rule that does not look at any outcome, by part.

    Of every rule the first scenario in the order of the files, alternately of the scripts that rules were tuned on and
    of the blind ones, where both have one; the twins of every n-th of them; every n-th healthy training.
    """
    by_rule: dict[str, list[Scenario]] = {}
    for one in scenarios:
        if _levels("faulty", one, level):
            by_rule.setdefault(one.rules[0], []).append(one)
    faulty = []
    for number, rule in enumerate(sorted(by_rule)):
        wanted = [one for one in by_rule[rule] if one.split == ("tuned", "blind")[number % 2]]
        faulty.append((wanted or by_rule[rule])[0])
    sound = [one for one in scenarios if one.kind == "healthy"]
    half = SUBSET_SOUND_COUNT // 2
    return {
        "faulty": tuple(faulty),
        "twin": _spread(faulty, half),
        "healthy": _spread(sound, SUBSET_SOUND_COUNT - half),
    }


def _spread(scenarios: Sequence[Scenario], count: int) -> tuple[Scenario, ...]:
    """So many, evenly over the whole sequence."""
    count = min(count, len(scenarios))
    return tuple(scenarios[(2 * i + 1) * len(scenarios) // (2 * count)] for i in range(count))


def count_left_out(results: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Faulty trainings, twins and healthy ones of the whole zoo that have no result, at the levels that were run."""
    have = {(one["part"], one["split"], one["scenario"], one["level"]) for one in results}
    levels = sorted({one["level"] for one in results if one["part"] != "healthy"}) or [2]
    scenarios = harness.choose_scenarios("all", "*")
    missing = [
        sum(
            (part, one.split, one.id, level) not in have
            for one in scenarios
            for level in ({found for wanted in levels for found in _levels(part, one, wanted)})
        )
        for part in PARTS
    ]
    return missing[0], missing[1], missing[2]


def outcome_of_sound(one: Mapping[str, Any]) -> str:
    """What tune did to a training without a planted fault: nothing, what wins when it is measured again, or a fault of
    its own."""
    if not one["recommended"]:
        return SILENT
    return WINS if one["saving_tuned_ratio"] >= LEAST_GAIN_RATIO else WRONG


def result_path(folder: Path, part: str, scenario: Scenario, level: int) -> Path:
    return folder / f"{part}-{scenario.split}-{scenario.id}-{level}.json"


def _is_done(path: Path) -> bool:
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(stored, dict) and stored.get("schema") == SCHEMA and stored.get("status") in ("done", "failed")


def tune_one(
    bench: Bench, part: str, scenario: Scenario, level: int, budget_s: float, most_rounds: int
) -> dict[str, Any]:
    """One training tuned and measured; stored after the tuning, so that an interruption costs no more than a part."""
    path = result_path(bench.out, part, scenario, level)
    stored = json.loads(path.read_text()) if path.exists() else {}
    bench.others.forget()
    if stored.get("status") != "tuned":
        stored = {
            "schema": SCHEMA,
            "part": part,
            "scenario": scenario.id,
            "split": scenario.split,
            "rule": scenario.rules[0] if scenario.rules else None,
            "level": level,
            "ranks": scenario.ranks,
            "unit": scenario.unit,
            "commit": bench.commit,
            "machine": dict(bench.machine),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "budget_s": budget_s,
        }
        # The twin is what its own tuning starts from: fixed as the script's author would.
        own_arguments = ["--fixed"] if part == "twin" else []
        try:
            stored |= run_tune(bench, scenario, level, own_arguments, budget_s)
        except RunFailed as failure:
            stored |= {"status": "failed", "reason": str(failure), "others_ratio": bench.others.ratio()}
            harness._store(path, stored)
            return stored
        stored |= {"status": "tuned", "others_in_tune_ratio": bench.others.ratio()}
        harness._store(path, stored)
    try:
        stored |= measure_sides(bench, part, scenario, level, stored, most_rounds)
        stored["status"] = "done"
    except RunFailed as failure:
        stored |= {"status": "failed", "reason": str(failure)}
    stored["others_ratio"] = bench.others.ratio()
    harness._store(path, stored)
    return stored


def run_tune(
    bench: Bench, scenario: Scenario, level: int, own_arguments: Sequence[str], budget_s: float
) -> dict[str, Any]:
    """What one tuning took and left: its wall time, its trials, its strategy file and the size of its patch."""
    home = harness.ROOT / ".hotloop"
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="tune-zoo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        training = harness.training_command(scenario, level, own_arguments)
        command = [*bench.hotloop, "tune", "--budget", f"{budget_s:g}s", "-o", "tuned", "--", *training]
        began_s = time.monotonic()
        with harness.take_turn(bench.turn), bench.others.watch():
            code, tail = run_command(command, folder, budget_s + SLACK_S)
        wall_s = time.monotonic() - began_s
        if code != 0:
            how = f"ran longer than {budget_s + SLACK_S:.0f} s" if code is None else f"ended with code {code}"
            raise RunFailed(f"tune {how}: {harness.scrub(tail, folder)}")
        report = json.loads((folder / "tuned" / "report.json").read_text())
        strategy = load_strategy(folder / "tuned" / "fast.toml")
        progress = [line for line in (folder / "stderr").read_text().splitlines() if line.startswith("hotloop: ")]
        found: dict[str, Any] = harness.scrub(
            {
                "wall_s": round(wall_s, 1),
                "tune": report["tune"],
                "findings": [
                    {key: one[key] for key in ("rule", "kind", "severity", "saving", "fix")}
                    for one in report["findings"]
                ],
                "step": report["step"],
                "recommended": [choice.technique for choice in strategy.choices],
                "strategy": (folder / "tuned" / "fast.toml").read_text(),
                "patch_line_count": len((folder / "tuned" / "patch.diff").read_text().splitlines()),
                "progress": progress,
            },
            folder,
        )
        return found


def measure_sides(
    bench: Bench, part: str, scenario: Scenario, level: int, tuned: Mapping[str, Any], most_rounds: int
) -> dict[str, Any]:
    """The script as it was tuned, under the strategy, and (of a faulty one) its twin: times and losses, in turn."""
    recommended = bool(tuned["recommended"])
    if part != "faulty" and not recommended:
        return {"times_ns": {}}
    fixed = harness.fix_arguments(scenario, tuned) if scenario.rules else []
    own = fixed[:1] if part == "twin" else []
    with tempfile.TemporaryDirectory(prefix="hotloop-tuned-") as folder:
        path = Path(folder) / "fast.toml"
        path.write_text(tuned["strategy"])
        sides: dict[str, tuple[Sequence[str], Sequence[str]]] = {"as it is": ((), own)}
        if recommended:
            sides["tuned"] = (("--strategy", str(path)), own)
        if part == "faulty":
            sides["fixed"] = ((), fixed)
        # An empty strategy is the script as it is; an opportunity of its twin may change the unit of work.
        longer = replace(scenario, timeout_s=2 * scenario.timeout_s)
        found = treat.run_sides(bench, longer, level, sides, most_rounds)
    best = {side: min(values) for side, values in found["times_ns"].items()}
    tuned_ns = best.get("tuned", best["as it is"])
    found["saving_tuned_ratio"] = round(1 - tuned_ns / best["as it is"], 3)
    if part == "faulty":
        found["speed_of_twin_ratio"] = round(best["fixed"] / tuned_ns, 3)
        found["saving_of_twin_ratio"] = round(1 - best["fixed"] / best["as it is"], 3)
    return found


# -- what came of it ---------------------------------------------------------------------------------------------------


def describe(result: Mapping[str, Any]) -> str:
    """One line for the person who watches."""
    if result["status"] == "failed":
        return f"failed: {result['reason']}"
    names = " + ".join(result["recommended"]) or "nothing"
    words = f"{names} recommended after {result['wall_s']:.0f} s"
    if "speed_of_twin_ratio" in result:
        words += f", {result['speed_of_twin_ratio']:.2f} of the twin's speed"
        words += f" (saved {result['saving_tuned_ratio']:.2f}, twin {result['saving_of_twin_ratio']:.2f})"
    elif "saving_tuned_ratio" in result:
        words += f", saved {result['saving_tuned_ratio']:.2f}"
    return words


def is_declined(one: Mapping[str, Any]) -> bool:
    """Whether tune tried nothing for the planted fault: each technique for it was rejected, or was no candidate."""
    wanted = set(treating(one["rule"]))
    tried = [t for t in one["tune"]["trials"] if wanted & set(t["techniques"]) and t["verdict"] != "rejected"]
    return not tried


def judge_forecasts(results: Sequence[Mapping[str, Any]]) -> list[tuple[bool, float]]:
    """Of every trial that was measured and had a forecast: was its saving inside the range, and how wide was that."""
    judged = []
    for one in results:
        for trial in one.get("tune", {}).get("trials", ()):
            forecast, ratio = trial["forecast"], trial["speedup_ratio"]
            if forecast and ratio and trial["n"] >= LEAST_PAIRS:
                saving = 1 - 1 / ratio
                inside = forecast["low_ratio"] <= saving <= forecast["high_ratio"]
                judged.append((inside, forecast["high_ratio"] - forecast["low_ratio"]))
    return judged


def draw_page(results: Sequence[Mapping[str, Any]]) -> str:
    """docs/tuned.md."""
    done = [one for one in results if one["status"] == "done"]
    faulty = [one for one in done if one["part"] == "faulty"]
    declined = [one for one in faulty if is_declined(one)]
    reached = [one for one in faulty if one["speed_of_twin_ratio"] >= ENOUGH_RATIO and one not in declined]
    sound = [one for one in done if one["part"] != "faulty"]
    told = [outcome_of_sound(one) for one in sound]
    judged = judge_forecasts(done)
    in_time = [one for one in done if one["wall_s"] <= one["budget_s"] + 5]
    lines = [
        "# Tuned trainings",
        "",
        "Made by `make tune-zoo` (tests/zoo/tune_zoo.py). `hotloop tune` on the zoo's scripts with a planted fault",
        "that a technique treats, unmodified; then the script as it is, under the `fast.toml` that tune wrote, and",
        "its twin with the fix written into it, in turn, 2 or 3 runs each: times are the fastest. Then the same on the",
        "twins and on healthy trainings, where there should be nothing to recommend; what is recommended is measured",
        "again.",
        "",
        _tell_setup(results),
        "",
        f"- **{len(reached)} of {len(faulty) - len(declined)} faulty trainings that a technique applies to reach "
        f"{ENOUGH_RATIO:.0%} of their twin's speed.** In {len(declined)} others every technique for the fault said why "
        "it does not apply, or the fault was not found.",
        f"- {told.count(SILENT)} of {len(sound)} healthy trainings and twins get no recommendation. To "
        f"{told.count(WINS)} more tune {WINS} (at least {LEAST_GAIN_RATIO:.0%} when both are run again: nobody planted "
        f"that, and it is there); to {told.count(WRONG)} it {WRONG}.",
        _tell_forecasts(judged),
        f"- {len(in_time)} of {len(done)} tunings ended within their budget and 5 s.",
    ]
    left = count_left_out(results)
    if any(left):
        lines.append(
            f"- Not run: {left[0]} of the zoo's faulty trainings, {left[1]} twins and {left[2]} healthy trainings"
            " (`--subset` chooses by rule and by place in the files, never by outcome)."
        )
    failed = [one for one in results if one["status"] == "failed"]
    lines += [f"- {len(failed)} failed: " + "; ".join(f"{one['scenario']}: {one['reason']}" for one in failed)] * bool(
        failed
    )
    busy = [one for one in results if (one.get("others_ratio") or 0) > harness.BUSY_RATIO]
    lines += [
        f"- In {len(busy)} of {len(results)} other programs used more than {harness.BUSY_RATIO:.0%} of the machine.",
        "",
        "n counts pairs of fresh processes behind the trial's speed-up. A loss that is `passed` stayed inside the",
        "bands of its technique's class ([tune.md](tune.md)).",
        "",
        "## Faulty trainings",
        "",
        "| training | level | recommended | of the twin's speed | saved | twin saved | trial's speed-up, n | loss "
        "| tune took | other trials |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in faulty:
        lines.append(
            f"| {one['split']} {one['scenario']} | {one['level']} | {_names(one)} | {one['speed_of_twin_ratio']:.2f} | "
            f"{one['saving_tuned_ratio']:.2f} | {one['saving_of_twin_ratio']:.2f} | {_proof(one)} | "
            f"{one['wall_s']:.0f} s | {_others(one)} |"
        )
    lines += [
        "",
        "## Healthy trainings and twins",
        "",
        "| training | recommended | outcome | saved | trial's speed-up, n | loss | tune took | other trials |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in sound:
        saved = f"{one['saving_tuned_ratio']:.2f}" if one["recommended"] else "-"
        lines.append(
            f"| {one['part']} {one['split']} {one['scenario']} | {_names(one)} | {outcome_of_sound(one)} | {saved} | "
            f"{_proof(one)} | {one['wall_s']:.0f} s | {_others(one)} |"
        )
    return "\n".join(lines) + "\n"


def _tell_setup(results: Sequence[Mapping[str, Any]]) -> str:
    """When, where and with what the results were made."""
    machine = results[0]["machine"]
    versions = ", ".join(f"{name} {machine.get(name)}" for name in ("torch", "hotloop"))
    parts = (
        ", ".join(sorted({one["date"][:10] for one in results})),
        f"{machine.get('cpu')}, {machine.get('cores')} cores, Python {machine.get('python')}, {versions}",
        f"commits {', '.join(sorted({one['commit'] for one in results}))}",
        f"budget {', '.join(sorted({format(one['budget_s'], 'g') for one in results}))} s",
    )
    return " · ".join(parts)


def _tell_forecasts(judged: Sequence[tuple[bool, float]]) -> str:
    if not judged:
        return "- No trial with a forecast was measured."
    return (
        f"- {sum(inside for inside, _ in judged)} of {len(judged)} measured savings lie inside the forecast's range; "
        f"its median width is {statistics.median(width for _, width in judged):.2f} of the step (wanted: "
        f"{NARROW_RATIO:.2f})."
    )


def _names(one: Mapping[str, Any]) -> str:
    return " + ".join(one["recommended"]) or "nothing"


def _proof(one: Mapping[str, Any]) -> str:
    """Speed-up with its interval and n, and what became of the loss, of the trial that was recommended."""
    trial = next((t for t in one["tune"]["trials"] if set(t["techniques"]) == set(one["recommended"])), None)
    if trial is None or not one["recommended"]:
        return "- | -"
    interval = f"{trial['speedup_ratio']:.2f} ({trial['low_ratio']:.2f}..{trial['high_ratio']:.2f}), {trial['n']}"
    return f"{interval} | {trial['quality'].get('status', 'unknown')}"


def _others(one: Mapping[str, Any]) -> str:
    told = []
    for trial in one["tune"]["trials"]:
        if set(trial["techniques"]) == set(one["recommended"]):
            continue
        ratio = "" if trial["speedup_ratio"] is None else f" {trial['speedup_ratio']:.2f}x, n = {trial['n']}"
        told.append(f"{trial['id']}: {trial['verdict']}{ratio}")
    return "; ".join(told) or "-"


if __name__ == "__main__":
    sys.exit(main())
