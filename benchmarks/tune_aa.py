"""How often tune's verdict errs: live A/A and known differences on a loaded machine, and A/A resamples.

    python benchmarks/tune_aa.py live --count 40     75 s each
    python benchmarks/tune_aa.py known --count 20    a step takes 5 % less
    python benchmarks/tune_aa.py resample            over what live left

Every process is appended to benchmarks/results/tune_aa.jsonl at once: started again, each part goes on where it was.
The trainer is a loop of matrix products and a sleep (numpy only), in fresh processes; the load comes from --load
processes that are busy for random times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.tuning import Verdict
from hotloop.tune.statistics import DECISION_LEVEL, MOST_PAIRS, Comparison, compare, noise_of

RESULTS = Path(__file__).resolve().parent / "results" / "tune_aa.jsonl"
STEP_S = 0.010
STEPS = 120
WARM_UP = 20
DIFFERENCE_RATIO = 1.05
TRAINER = f"""
import sys, time
import numpy as np
a = np.random.rand(160, 160)
pause_s = float(sys.argv[1])
began_s = 0.0
for step in range({STEPS}):
    if step == {WARM_UP}:
        began_s = time.perf_counter()
    for _ in range(6):
        a @ a
    time.sleep(pause_s)
print((time.perf_counter() - began_s) / {STEPS - WARM_UP})
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("live", "known", "resample", "show"))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--load", type=int, default=1, help="busy processes beside the trials (default 1)")
    options = parser.parse_args()
    if options.part in ("live", "known"):
        with busy(options.load):
            run_live(options.part, options.count, options.load)
    if options.part == "resample":
        resample(2_000)
    show()
    return 0


def run_live(part: str, count: int, load: int) -> None:
    """Comparisons with fresh processes, until ``count`` of this part are stored."""
    done = sum(one["part"] == part for one in read_results())
    pauses = (STEP_S, STEP_S)
    if part == "known":  # the sleep is calibrated so that the whole step, not the sleep alone, differs by 5 %
        whole_s = min(run_process(STEP_S) for _ in range(3))
        pauses = (STEP_S, STEP_S - whole_s * (1 - 1 / DIFFERENCE_RATIO))
    for number in range(done, count):
        began_s = time.monotonic()
        sides: tuple[list[float], list[float]] = ([], [])
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
                "baseline_s": sides[0],
                "candidate_s": sides[1],
                "verdict": found.verdict.value,
                "ratio": found.speedup_ratio,
                "took_s": took_s,
                "load": load,
            }
        )
        print(f"{part} {number + 1}/{count}: {found.verdict.value}, {found.reason} ({took_s:.0f} s)", flush=True)


def run_process(pause_s: float) -> float:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(pause_s)], capture_output=True, text=True, check=True, timeout=300
    )
    return float(done.stdout)


def resample(count: int) -> None:
    """A/A comparisons over blocks of consecutive processes of one side, as they really followed each other."""
    series = [one["baseline_s"] for one in read_results() if one["part"] == "live"]
    series += [one["candidate_s"] for one in read_results() if one["part"] == "live"]
    flat = [x for one in series for x in one]
    if len(flat) < 40:
        print(f"only {len(flat)} processes were recorded: run `live` first")
        return
    generator = random.Random(1)
    wrong = 0
    for _ in range(count):
        times: list[float] = []
        while len(times) < 2 * MOST_PAIRS:  # blocks keep what neighbours have in common
            start = generator.randrange(len(flat))
            times += flat[start : start + generator.randrange(4, 13)]
        wrong += judge_in_turn(times) is not Verdict.CANNOT_TELL
    store({"part": "resample", "count": count, "wrong": wrong, "processes": len(flat)})


def judge_in_turn(times: Sequence[float]) -> Verdict:
    baseline: list[float] = []
    candidate: list[float] = []
    for pair in range(MOST_PAIRS):
        first, second = times[2 * pair : 2 * pair + 2]
        baseline.append(first if pair % 2 == 0 else second)
        candidate.append(second if pair % 2 == 0 else first)
        found = judge_pairs(baseline, candidate)
        if found.decided:
            return found.verdict
    return Verdict.CANNOT_TELL


def judge_pairs(baseline: Sequence[float], candidate: Sequence[float]) -> Comparison:
    """As tune does: beside the noise that the baseline's own processes show so far."""
    return compare(baseline, candidate, noise=noise_of(baseline))


def judge_again(one: dict[str, Any]) -> Verdict:
    """What today's statistics say of a stored comparison, pair by pair. One that older ones ended early has no more
    pairs than they needed."""
    baseline, candidate = one["baseline_s"], one["candidate_s"]
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
