"""Techniques -> what each does to the numbers of small trainings of every kind, at length, as JSON and as a page.

    python benchmarks/numerics.py                  what the result does not hold yet, and docs/numerics.md
    python benchmarks/numerics.py [technique ...]  these alone

Run by `make numerics`; resumable. The trainings, the ways in and the laws are those of tests/apply/battery.py; here
each technique that applies trains for 300 steps, with several seeds, on 1 and 2 ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hotloop.change.apply import TECHNIQUES
from hotloop.core.techniques import Technique

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "apply"))

from battery import (  # noqa: E402
    CLASSES,
    FIXTURES,
    KINDS,
    PATH_TOLERANCE,
    REORDERED_STEPS,
    ROUNDING_FACTOR,
    SEEDS,
    TREATED_SEEDS,
    Outcome,
    Run,
    baselines_of,
    compiles,
    places_of,
    tolerance,
    try_everywhere,
)

RESULT = ROOT / "benchmarks" / "results" / "numerics.json"
PAGE = ROOT / "docs" / "numerics.md"
SLOW_STEPS = 300
BLOCK_STEPS = 50


def run_slow(
    ids: Sequence[str], out: Path, steps: int, world_sizes: Sequence[int], limit_s: float = math.inf
) -> dict[str, Any]:
    """Judge every technique on what ``out`` does not hold of it yet, and write there what is known after each training
    at length; past the limit, begin no more."""
    result = read_result(out, steps)
    began = time.monotonic()

    def write() -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = out.with_suffix(".new")
        rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result["techniques"].items())
        head = json.dumps({key: value for key, value in result.items() if key != "techniques"})[1:-1]
        scratch.write_text(f'{{{head}, "techniques": {{\n{rows}\n}}}}\n')
        scratch.replace(out)

    for world_size in world_sizes:
        baselines = Baselines(out.parent / ".numerics-baselines", steps, world_size)
        short = Baselines(out.parent / ".numerics-baselines", None, world_size)
        for one in ids:
            technique = TECHNIQUES[one]
            entry = result["techniques"].setdefault(one, {"class": technique.numerics.value, "ranks": {}})
            entry["class"] = technique.numerics.value
            part = entry["ranks"].get(str(world_size), {})
            if part.get("source", fingerprint(technique)) != fingerprint(technique):
                part = {}  # the technique is another one now
            started = time.monotonic()
            took_s = part.get("took_s", 0.0)
            for after in judge_slowly(technique, part, baselines, short, steps, world_size):
                after["took_s"] = round(took_s + time.monotonic() - started, 1)
                entry["ranks"][str(world_size)] = after
                write()
                print(f"{one} on {world_size}: {after['verdict']}, {after['took_s']} s {after['why'][:1]}", flush=True)
                if time.monotonic() - began > limit_s:
                    return result
    return result


def judge_slowly(
    technique: Technique,
    part: Mapping[str, Any],
    baselines: Mapping[tuple[str, int], Run],
    short: Mapping[tuple[str, int], Run],
    steps: int,
    world_size: int,
) -> Iterator[dict[str, Any]]:
    """What is known of it, beginning with ``part``, after each training that is still missing there: over a few steps
    wherever it may apply, then over all steps and several seeds at those of ``long_places``."""
    places: list[dict[str, Any]] = list(part.get("places", ()))
    long: list[dict[str, Any]] = list(part.get("long", ()))
    failures: list[str] = []

    def known() -> dict[str, Any]:
        why = [f"{one['fixture']}, {one['way']}: {one['problem']}" for one in places if one["problem"]]
        why += [problem for one in long for problem in one.get("problems", ())] + failures
        applied = any(one["applied"] for one in places)
        verdict = "failed" if why else "kept" if applied else "did not apply"
        reasons = sorted({said for one in places for said in one["said"]})
        return {
            "verdict": verdict,
            "why": why or ([] if applied else reasons),
            "source": fingerprint(technique),
            "places": places,
            "long": long,
        }

    tried = {(one["fixture"], one["way"]) for one in places}
    missing = [place for place in places_of(technique, world_size) if place not in tried]
    if missing:
        for name in {name for name, _ in missing}:
            _ = short[name, SEEDS[0]]  # made before the children are forked
        try:
            places += [one.as_json() for one in try_everywhere(technique, short, None, SEEDS[0], world_size, missing)]
        except RuntimeError as error:
            failures.append(str(error))
        yield known()
    for name, way in long_places(technique, places):
        if any((one["fixture"], one["way"]) == (name, way) for one in long):
            continue
        try:
            long.append(judge_at_length(technique, baselines, name, way, steps, world_size))
        except RuntimeError as error:
            failures.append(f"{name}, {way}: {error}")
        yield known()


def long_places(technique: Technique, places: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Of the places where it applies: the first of each way, and all that were made for it."""
    found: list[tuple[str, str]] = []
    for one in places:
        name, way = one["fixture"], one["way"]
        if one["applied"] and one["problem"] is None and name in FIXTURES:
            first = way not in {way for found_name, way in found if not FIXTURES[found_name].only}
            if technique.id in FIXTURES[name].only or first:
                found.append((name, way))
    return found


def judge_at_length(
    technique: Technique,
    baselines: Mapping[tuple[str, int], Run],
    name: str,
    way: str,
    steps: int,
    world_size: int,
) -> dict[str, Any]:
    runs: list[Outcome] = []
    problems = []
    _ = baselines[name, SEEDS[0]]
    for seed in TREATED_SEEDS:
        runs += try_everywhere(technique, baselines, steps, seed, world_size, [(name, way)])
        if runs[-1].problem:
            problems.append(f"{name}, {way}, seed {seed}: {runs[-1].problem}")
        if runs[-1].claim == "exact":
            break
    claim = max((run.claim for run in runs if run.claim), key=CLASSES.index, default=None)
    if claim != "exact":
        spread = outside_spread([baselines[name, seed].losses for seed in SEEDS], [run.losses for run in runs])
        problems += [f"{name}, {way}: {spread}"] if spread else []
    return {
        "fixture": name,
        "way": way,
        "numerics": claim,
        "steps": steps,
        "seeds": len(runs),
        "baseline_seeds": len(SEEDS),
        "problems": problems,
        "tolerance_share_ratio": max(
            (run.tolerance_share_ratio for run in runs if run.tolerance_share_ratio is not None), default=None
        ),
        "allowed_at_last_reordered_step_ratio": tolerance(baselines[name, SEEDS[0]], REORDERED_STEPS - 1),
        "last_block_loss": [blocks_of(run.losses)[-1] for run in runs if run.losses],
        "baseline_last_block_loss": [blocks_of(baselines[name, seed].losses)[-1] for seed in SEEDS],
    }


def blocks_of(losses: Sequence[float]) -> list[float]:
    return [sum(losses[i : i + BLOCK_STEPS]) / BLOCK_STEPS for i in range(0, len(losses), BLOCK_STEPS)]


def outside_spread(baselines: Sequence[Sequence[float]], treated: Sequence[Sequence[float]]) -> str | None:
    """The first block in which the treated seeds' mean leaves the baseline seeds' range, or None."""
    old = [blocks_of(losses) for losses in baselines]
    new = [blocks_of(losses) for losses in treated]
    for index in range(len(old[0])):
        low, high = min(seed[index] for seed in old), max(seed[index] for seed in old)
        mean = sum(seed[index] for seed in new) / len(new)
        if not low <= mean <= high:
            first = index * BLOCK_STEPS
            return f"steps {first}..{first + BLOCK_STEPS}: mean loss {mean:.5f} outside {low:.5f}..{high:.5f}"
    return None


class Baselines(Mapping[tuple[str, int], Run]):
    """Runs without a technique, by fixture and seed; made on demand, and stored with the result."""

    def __init__(self, folder: Path, steps: int | None, world_size: int) -> None:
        self._folder, self._steps, self._world_size = folder, steps, world_size
        self._runs: dict[tuple[str, int], Run] = {}

    def __getitem__(self, key: tuple[str, int]) -> Run:
        if key not in self._runs:
            self._load(key[0])
        return self._runs[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def _load(self, name: str) -> None:
        steps = self._steps or FIXTURES[name].few_steps
        file = self._folder / f"{name}-{steps}-steps-{self._world_size}-ranks-{torch.__version__}-rounding.pt"
        if file.exists():
            kept = torch.load(file, weights_only=True)
        else:
            runs = baselines_of(self._steps, SEEDS, self._world_size, [name])
            kept = {
                seed: (list(run.losses), list(run.start), list(run.state), list(run.rounding_ratios))
                for (_, seed), run in runs.items()
            }
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = file.with_suffix(".new")
            torch.save(kept, scratch)
            scratch.replace(file)
        for seed, (losses, start, state, errors) in kept.items():
            self._runs[name, seed] = Run(
                losses=tuple(losses), start=tuple(start), state=tuple(state), rounding_ratios=tuple(errors)
            )


def fingerprint(technique: Technique) -> str:
    """Of the file of a technique; results of another one are made anew."""
    return hashlib.sha256(inspect.getsource(inspect.getmodule(technique)).encode()).hexdigest()[:12]  # type: ignore[arg-type]


def read_result(out: Path, steps: int) -> dict[str, Any]:
    head = {
        "schema": "hotloop.numerics/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "steps": steps,
        "baseline_seeds": len(SEEDS),
        "treated_seeds": len(TREATED_SEEDS),
        "rounding_factor": ROUNDING_FACTOR,
        "path_tolerance_ratio": PATH_TOLERANCE,
        "reordered_steps": REORDERED_STEPS,
    }
    if out.exists():
        old = json.loads(out.read_text())
        same = ("schema", "torch", "steps", "rounding_factor", "path_tolerance_ratio", "reordered_steps")
        if all(old.get(key) == head[key] for key in same):
            return {**old, "date": head["date"]}
    return {**head, "techniques": {}}


def is_complete(technique: Technique, result: Mapping[str, Any], world_size: int) -> bool:
    part = result["techniques"].get(technique.id, {}).get("ranks", {}).get(str(world_size))
    if part is None:
        return False
    tried = {(one["fixture"], one["way"]) for one in part.get("places", ())}
    trained = {(one["fixture"], one["way"]) for one in part.get("long", ())}
    return tried >= set(places_of(technique, world_size)) and trained >= set(long_places(technique, part["places"]))


def describe_machine() -> str:
    """Processor and cores, as /proc says it."""
    name = "unknown processor"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def summarize(result: Mapping[str, Any]) -> str:
    """The result as a page."""
    entries = {name: entry for name, entry in sorted(result["techniques"].items()) if name in TECHNIQUES}
    parts = [part for entry in entries.values() for part in entry["ranks"].values()]
    minutes = sum(part.get("took_s", 0) for part in parts) / 60
    lines = [
        "<!-- Generated by benchmarks/numerics.py from benchmarks/results/numerics.json; do not edit. -->",
        "# What every technique does to the numbers",
        "",
        f"`make numerics` runs small training scripts of {len(KINDS)} kinds with and without each technique. It "
        "applies the technique in three ways: through the API, in hotloop's Trainer, and from outside the script. "
        "Some kinds were made for techniques that replace something specific: gradients that are clipped one by one, "
        "tiny buckets with a needless scan, or too many threads. If a technique applies during a few steps, the "
        f"script then trains for {result['steps']} steps: the first kind for each way, and all kinds that were made "
        "for the technique.",
        "",
        "The classes have the following meanings:",
        "",
        "- `exact`: every loss, parameter, and buffer has equal bits with and without the technique.",
        f"- `reordered`: over {result['reordered_steps']} steps, the losses differ by at most "
        f"{result['rounding_factor']} times the rounding error of the training without the technique. This rounding "
        "error is the largest difference between the float32 and float64 losses up to the step. The number after the "
        "class is the share of this limit that was used.",
        f"- `resampled` and `lossy`: in every block of {BLOCK_STEPS} steps, the mean over {result['treated_seeds']} "
        f"seeds with the technique is within the range of {result['baseline_seeds']} seeds without the technique.",
        "",
        f"The {len(parts)} results below were measured on {result['machine']}, torch {result['torch']}, "
        f"{result['date']}, and took {minutes:.0f} minutes on a busy machine. If a technique did not change any "
        "training, the row quotes the technique's own reason. If a technique's file changes, its result is measured "
        "again, so the rows are from several commits; the raw table identifies each row's source code by its hash.",
        "",
        "The models are smooth and contain no ReLU. If an input is within a rounding error of a kink, a different "
        "summation order moves the input to the other side of the kink, and the losses then diverge by more than the "
        "rounding error. With channels_last on 2 ranks, this happened to one of 24,832 inputs in step 5 for one of "
        "three seeds: a loss that had differed by 1e-7 differed by 2e-5 in step 14.",
        "",
        "| technique | class | 1 rank | 2 ranks |",
        "|---|---|---|---|",
    ]
    for name, entry in entries.items():
        cells = [_cell(entry["ranks"].get(ranks)) for ranks in ("1", "2")]
        lines.append(f"| [{name}](techniques.md#{name}) | {entry['class']} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def _cell(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "not reached"
    if part["verdict"] == "did not apply":
        reason = find_reason(part["why"])
        return f"{'does nothing here' if 'rank' in reason else 'cannot be judged on a CPU'}: {reason}"
    places = [
        f"{one['fixture']}, {one['way']}: {one['numerics']}{_share(one)}, {one['steps']} steps x {one['seeds']}"
        for one in part.get("long", ())
    ]
    why = [" ".join(text.split())[:160].replace("|", "/") for text in part["why"][:1]]
    return "; ".join(["**broken**" if part["verdict"] == "failed" else part["verdict"], *places, *why])


def find_reason(said: Sequence[str]) -> str:
    """Why nothing could be judged: what was missing, before what another kind of training lacked."""
    reasons = [one.removeprefix("not applicable: ").replace("|", "/") for one in said]
    decisive = ("accelerator", "on the CPU", "on cpu", "on a CPU", "one rank", "ranks", "")
    return next(min(found, key=len) for word in decisive if (found := [one for one in reasons if word in one]))


def _share(one: Mapping[str, Any]) -> str:
    share = one.get("tolerance_share_ratio")
    return "" if share is None else f" ({share:.2g})"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Judge the numerics of techniques.")
    parser.add_argument("ids", nargs="*", help="techniques (default: all)")
    parser.add_argument("-o", "--out", type=Path, default=RESULT)
    parser.add_argument("--steps", type=int, default=SLOW_STEPS)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no further technique after this time")
    parser.add_argument("--ranks", type=int, nargs="*", default=(1, 2))
    chosen = parser.parse_args(arguments)
    ids = sorted(chosen.ids or TECHNIQUES, key=lambda one: compiles(TECHNIQUES[one]))  # what takes minutes comes last
    result = run_slow(ids, chosen.out, chosen.steps, chosen.ranks, chosen.limit_s)
    if chosen.out == RESULT:
        PAGE.write_text(summarize(result))
    missing = sum(not is_complete(TECHNIQUES[one], result, ranks) for one in ids for ranks in chosen.ranks)
    if missing:
        print(f"{missing} results are still to come: run it again", file=sys.stderr)
    bad = [
        one
        for one, entry in result["techniques"].items()
        if any(part["verdict"] == "failed" for part in entry["ranks"].values())
    ]
    print(f"broken promises: {', '.join(bad) or 'none'}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
