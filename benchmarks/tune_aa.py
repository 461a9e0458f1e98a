"""How often tune's verdict errs: live A/A and known differences on a loaded machine, and A/A resamples.

    python benchmarks/tune_aa.py live --count 40     75 s each
    python benchmarks/tune_aa.py known --count 20    a step takes 5 % less
    python benchmarks/tune_aa.py resample            over what live left
    python benchmarks/tune_aa.py crowded             3 minutes: processes that share one core with a busy one
    python benchmarks/tune_aa.py paced               3 minutes: processes on all cores, beside what the host does

Every process is appended to benchmarks/results/tune_aa.jsonl at once: started again, each part goes on where it was.
The trainer is a loop of matrix products and a sleep (numpy only), in fresh processes; the load comes from --load
processes that are busy for random times. Between its steps the trainer times the fixed work of observe/pace.py, with
numpy, so that torch need not be imported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.core.tuning import Verdict
from hotloop.tune.goals import CROWDING, PACE
from hotloop.tune.statistics import DECISION_LEVEL, MOST_PAIRS, Comparison, Covariate, compare, crowding, noise_of

RESULTS = Path(__file__).resolve().parent / "results" / "tune_aa.jsonl"
STEP_S = 0.010
STEPS = 120
WARM_UP = 20
PRODUCTS = 6
FULL_PRODUCTS = 40
RECORDED_S = 170.0
DIFFERENCE_RATIO = 1.05
POWER_RATIOS = (1.05, 1.15, 1.3)
POWER_PAIRS = 10
"""As many as three minutes hold where a process takes eight seconds."""
TRAINER = f"""
import json, os, sys, time
import numpy as np
sys.path.insert(0, sys.argv[2])
from supervisor import read_cores
cores = sorted(os.sched_getaffinity(0))
def look():
    busy, whole = read_cores(open("/proc/stat").read(), cores)
    return busy, whole, time.process_time() * os.sysconf("SC_CLK_TCK")
a = np.random.rand(160, 160)
fixed = np.full((160, 160), 0.5)
pause_s = float(sys.argv[1])
began_s, paced_s = 0.0, []
for step in range({STEPS}):
    if step == {WARM_UP}:
        before, began_s = look(), time.perf_counter()
    for _ in range(int(sys.argv[3])):
        a @ a
    time.sleep(pause_s)
    pace_s = time.perf_counter()
    fixed + fixed @ fixed
    if began_s:
        paced_s.append(time.perf_counter() - pace_s)
took_s = time.perf_counter() - began_s - sum(paced_s)
busy, whole, own = (b - a for a, b in zip(before, look()))
steps = {STEPS - WARM_UP}
kept_s = sorted(paced_s)[: steps - steps // 20]
print(json.dumps([took_s / steps, max(0.0, busy - own) / max(1, whole), sum(kept_s) / len(kept_s) * 1e9]))
"""
SUPERVISOR = Path(__file__).resolve().parents[1] / "src" / "hotloop" / "tune"


class Process(NamedTuple):
    """What one process told; None where its recording is older than that."""

    time_s: float
    others_ratio: float | None
    pace_ns: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("live", "known", "resample", "crowded", "paced", "show"))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--load", type=int, default=1, help="busy processes beside the trials (default 1)")
    options = parser.parse_args()
    if options.part in ("live", "known"):
        with busy(options.load):
            run_live(options.part, options.count, options.load)
    if options.part == "resample":
        resample(2_000)
    if options.part in ("crowded", "paced"):
        if not any(one["part"] == options.part for one in read_results()):
            record_equal(options.part)
        resample_equal(options.part, 1_000)
    show()
    return 0


def run_live(part: str, count: int, load: int) -> None:
    """Comparisons with fresh processes, until ``count`` of this part are stored."""
    done = sum(one["part"] == part for one in read_results())
    pauses = (STEP_S, STEP_S)
    if part == "known":  # the sleep is calibrated so that the whole step, not the sleep alone, differs by 5 %
        whole_s = min(run_process(STEP_S).time_s for _ in range(3))
        pauses = (STEP_S, STEP_S - whole_s * (1 - 1 / DIFFERENCE_RATIO))
    for number in range(done, count):
        began_s = time.monotonic()
        sides: tuple[list[Process], list[Process]] = ([], [])
        while True:
            order = (0, 1) if len(sides[0]) % 2 == 0 else (1, 0)
            for side in order:
                sides[side].append(run_process(pauses[side]))
            found = judge_pairs(*sides)
            if found.decided:
                break
        took_s = time.monotonic() - began_s
        store(
            {
                "part": part,
                "sides": sides,
                "verdict": found.verdict.value,
                "ratio": found.speedup_ratio,
                "took_s": took_s,
                "load": load,
            }
        )
        print(f"{part} {number + 1}/{count}: {found.verdict.value}, {found.reason} ({took_s:.0f} s)", flush=True)


def run_process(pause_s: float, *, products: int = PRODUCTS) -> Process:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(pause_s), str(SUPERVISOR), str(products)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return Process(*json.loads(done.stdout))


def resample(count: int) -> None:
    """A/A comparisons over blocks of consecutive processes of one side, as they really followed each other."""
    live = [one for one in read_results() if one["part"] == "live"]
    flat = [process for side in (0, 1) for one in live for process in sides_of(one)[side]]
    if len(flat) < 40:
        print(f"only {len(flat)} processes were recorded: run `live` first")
        return
    generator = random.Random(1)
    wrong = 0
    right = dict.fromkeys(POWER_RATIOS, 0)
    for _ in range(count):
        processes = draw_blocks(generator, flat)
        wrong += judge_in_turn(processes, 1.0, MOST_PAIRS) is not Verdict.CANNOT_TELL
        for ratio in POWER_RATIOS:
            right[ratio] += judge_in_turn(processes, ratio, POWER_PAIRS) is Verdict.FASTER
    told = {"part": "resample", "count": count, "wrong": wrong, "processes": len(flat)}
    known = sum(one.others_ratio is not None for one in flat)
    store({**told, "with_others": known, "right": {f"{ratio:g}": right[ratio] for ratio in POWER_RATIOS}})


def record_equal(part: str) -> None:
    """Equal processes without a pause: on one core with a busy one that comes and goes, or on all of the cores."""
    began_s, found = time.monotonic(), []
    if part == "crowded":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    load = 1 if part == "crowded" else 0
    with busy(load):
        while time.monotonic() - began_s < RECORDED_S:
            found.append(run_process(0.0, products=FULL_PRODUCTS))
    store({"part": part, "load": load, "cores": len(os.sched_getaffinity(0)), "processes": found})


def resample_equal(part: str, count: int) -> None:
    """A/A and differences laid on recorded blocks, with and without what was seen of the machine."""
    flat = [Process(*one) for stored in read_results() if stored["part"] == part for one in stored["processes"]]
    ways = {
        "times alone": [one._replace(others_ratio=None, pace_ns=None) for one in flat],
        "equal crowding": [one._replace(pace_ns=None) for one in flat],
        "all covariates": flat,
    }
    for name, blocks in ways.items():
        generator = random.Random(1)
        wrong, right = 0, dict.fromkeys(POWER_RATIOS, 0)
        for _ in range(count):
            processes = draw_blocks(generator, blocks)
            wrong += judge_in_turn(processes, 1.0, MOST_PAIRS) is not Verdict.CANNOT_TELL
            for ratio in POWER_RATIOS:
                right[ratio] += judge_in_turn(processes, ratio, POWER_PAIRS) is Verdict.FASTER
        told = ", ".join(f"{ratio:g}x {right[ratio] / count:.1%}" for ratio in POWER_RATIOS)
        print(f"{part}, {name}: {wrong} of {count} A/A wrong; right within {POWER_PAIRS} pairs: {told}")


def draw_blocks(generator: random.Random, flat: Sequence[Process]) -> list[Process]:
    """Enough processes for a comparison, in blocks: they keep what neighbours have in common."""
    processes: list[Process] = []
    while len(processes) < 2 * MOST_PAIRS:
        start = generator.randrange(len(flat))
        processes += flat[start : start + generator.randrange(4, 13)]
    return processes


def sides_of(one: dict[str, Any]) -> tuple[list[Process], list[Process]]:
    """The processes of both arms of a stored comparison."""
    if "sides" in one:
        first, second = one["sides"]
        return [Process(*values) for values in first], [Process(*values) for values in second]
    times = (one["baseline_s"], one["candidate_s"])
    shares = one.get("others_ratios", [[None] * len(side) for side in times])
    first, second = ([Process(*both) for both in zip(*side, strict=True)] for side in zip(times, shares, strict=True))
    return first, second


def judge_in_turn(processes: Sequence[Process], speedup: float, most_pairs: int) -> Verdict:
    """Neighbours as pairs, the second arm so much faster than it was."""
    sides: tuple[list[Process], list[Process]] = ([], [])
    for pair in range(most_pairs):
        both = processes[2 * pair : 2 * pair + 2]
        for side in (0, 1):
            process = both[side if pair % 2 == 0 else 1 - side]
            sides[side].append(process._replace(time_s=process.time_s / (speedup if side else 1.0)))
        found = judge_pairs(*sides)
        if found.decided:
            return found.verdict
    return Verdict.CANNOT_TELL


def judge_pairs(baseline: Sequence[Process], candidate: Sequence[Process]) -> Comparison:
    """As tune does: beside the noise of the baseline itself, at equal values of what was seen of the machine."""
    times = [[one.time_s for one in side] for side in (baseline, candidate)]
    covariates = []
    for words, value_of in _COVARIATES:
        sides = [[value for one in side if (value := value_of(one)) is not None] for side in (baseline, candidate)]
        if len(sides[0]) == len(sides[1]) == len(baseline):
            every = list(zip(times[0], sides[0], strict=True))
            covariates.append(Covariate(baseline=sides[0], candidate=sides[1], every=every, words=words))
    return compare(*times, noise=noise_of(times[0]), covariates=covariates)


_COVARIATES = (
    (CROWDING, lambda one: None if one.others_ratio is None else crowding(one.others_ratio)),
    (PACE, lambda one: None if one.pace_ns is None else math.log(one.pace_ns)),
)


def judge_again(one: dict[str, Any]) -> Verdict:
    """What today's statistics say of a stored comparison, pair by pair. One that older ones ended early has no more
    pairs than they needed."""
    baseline, candidate = sides_of(one)
    for pairs in range(1, len(baseline) + 1):
        found = judge_pairs(baseline[:pairs], candidate[:pairs])
        if found.decided:
            return found.verdict
    return Verdict.CANNOT_TELL


def show() -> None:
    """The figures so far, with what was asked of them."""
    results = read_results()
    live = [one for one in results if one["part"] == "live"]
    told = [judge_again(one) for one in live]
    wrong = sum(verdict is not Verdict.CANNOT_TELL for verdict in told)
    print(
        f"live A/A: {wrong} of {len(live)} wrong (asked: at most 2 of 40; level {DECISION_LEVEL:.0%}); "
        f"longest {max((one['took_s'] for one in live), default=0):.0f} s, "
        f"load {sorted({one['load'] for one in live})} busy processes beside whatever else ran"
    )
    known = [one for one in results if one["part"] == "known"]
    told = [judge_again(one) for one in known]
    print(
        f"known {DIFFERENCE_RATIO - 1:.0%}: {told.count(Verdict.FASTER)} of {len(told)} right, "
        f"{told.count(Verdict.SLOWER)} with the wrong sign, {told.count(Verdict.CANNOT_TELL)} cannot tell "
        f"(asked: 90 %, 0); "
        f"longest {max((one['took_s'] for one in known), default=0):.0f} s (asked: 300)"
    )
    for one in [one for one in results if one["part"] == "resample"][-1:]:
        print(f"A/A resamples: {one['wrong']} of {one['count']} wrong (asked: at most 1.5 %)")
        for ratio, count in one.get("right", {}).items():
            print(f"a difference of {ratio}x laid on them: {count} of {one['count']} right within {POWER_PAIRS} pairs")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    workers = [multiprocessing.Process(target=_be_busy, args=(i,), daemon=True) for i in range(count)]
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


def read_results() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines() if line.strip()]


def store(result: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())
