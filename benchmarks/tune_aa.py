"""How often tune's verdict errs: A/A and a known 5 % on a real step, and resamples of the recorded processes.

    python benchmarks/tune_aa.py live --count 40     equal processes: whatever is told apart is wrong
    python benchmarks/tune_aa.py known --count 20    a step with 20 micro-batches beside one with 21
    python benchmarks/tune_aa.py crowded             3 minutes: processes that share one core with a busy one
    python benchmarks/tune_aa.py paced               3 minutes: processes on all cores, beside what the host does
    python benchmarks/tune_aa.py resample            over what live left
    python benchmarks/tune_aa.py publish             one table of it all in benchmarks/results/tune_aa/

One procedure for all parts: the trainer is a torch training (forward and backward of MICRO_BATCHES micro-batches, then
AdamW), in fresh processes; the load comes from --load processes that are busy for random times; between its steps the
trainer times the fixed work of observe/pace.py. What a micro-batch is of the step is measured in the same processes, so
that the known difference is told and not assumed. Every comparison is appended to .passes/tune_aa.jsonl at once:
started again, each part goes on where it was. ``show --table FILE`` tells the figures of a published table; the one of
2026-11-22 is of an older trainer, a loop of numpy products and a sleep, and of two procedures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raw import describe_commit

from hotloop.core.tuning import TrialVerdict
from hotloop.tune.goals import CROWDING, PACE
from hotloop.tune.statistics import DECISION_LEVEL, MOST_PAIRS, Covariate, PairComparison, compare, crowding, noise_of

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".passes" / "tune_aa.jsonl"
TABLES = Path(__file__).resolve().parent / "results" / "tune_aa"
STEPS = 120
WARM_UP = 20
MICRO_BATCHES = 20
RECORDED_S = 170.0
POWER_RATIOS = (1.05, 1.15, 1.3)
POWER_PAIRS = 10
"""As many as three minutes hold where a process takes eight seconds."""
TRAINER = f"""
import json, os, sys, time
import torch
from torch.nn import GELU, Linear, Sequential
sys.path.insert(0, sys.argv[2])
from supervisor import read_cores
torch.manual_seed(0)
cores = sorted(os.sched_getaffinity(0))
torch.set_num_threads(1)
def look():
    busy, whole, *_ = read_cores(open("/proc/stat").read(), cores)
    return busy, whole, time.process_time() * os.sysconf("SC_CLK_TCK")
model = Sequential(Linear(128, 256), GELU(), Linear(256, 128))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
fixed = torch.full((160, 160), 0.5, dtype=torch.float64)
micro_batches = int(sys.argv[1])
began_s, paced_s, micro_s, losses = 0.0, [], [], []
for step in range({STEPS}):
    if step == {WARM_UP}:
        before, began_s = look(), time.perf_counter()
    inner_s = time.perf_counter()
    for micro in range(micro_batches):
        loss = (model(torch.randn(64, 128)) - 1.0).square().mean() / micro_batches
        loss.backward()
    micro_s.append((time.perf_counter() - inner_s) / micro_batches)
    optimizer.step()
    optimizer.zero_grad()
    pace_s = time.perf_counter()
    fixed + fixed @ fixed
    if began_s:
        paced_s.append(time.perf_counter() - pace_s)
took_s = time.perf_counter() - began_s - sum(paced_s)
busy, whole, own = (b - a for a, b in zip(before, look()))
steps = {STEPS - WARM_UP}
kept_s = sorted(paced_s)[: steps - steps // 20]
ratio = sum(micro_s[{WARM_UP}:]) / took_s
print(json.dumps([took_s / steps, max(0.0, busy - own) / max(1, whole), sum(kept_s) / len(kept_s) * 1e9, ratio]))
"""
SUPERVISOR = Path(__file__).resolve().parents[1] / "src" / "hotloop" / "tune"


class Process(NamedTuple):
    """What one process told; None where its recording is older than that."""

    time_s: float
    others_ratio: float | None
    pace_ns: float | None = None
    micro_batch_ratio: float | None = None
    """Share of the step that one micro-batch takes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("live", "known", "resample", "crowded", "paced", "show", "publish"))
    parser.add_argument("--table", type=Path, help="show: a published table in place of what was measured here")
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
    if options.part == "publish":
        write_raw_table(TABLES / f"{describe_commit()}.jsonl", read_results())
    show(read_table_rows(options.table) if options.table else read_results())
    return 0


def run_live(part: str, count: int, load: int) -> None:
    """Comparisons with fresh processes, until ``count`` of this part are stored."""
    done = sum(one["part"] == part for one in read_results())
    # The unchanged side of a known difference does one micro-batch more.
    micro_batches = (MICRO_BATCHES + (part == "known"), MICRO_BATCHES)
    for number in range(done, count):
        began_s = time.monotonic()
        sides: tuple[list[Process], list[Process]] = ([], [])
        while True:
            order = (0, 1) if len(sides[0]) % 2 == 0 else (1, 0)
            for side in order:
                sides[side].append(run_process(micro_batches[side]))
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


def run_process(micro_batches: int) -> Process:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(micro_batches), str(SUPERVISOR)],
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
        wrong += judge_in_turn(processes, 1.0, MOST_PAIRS) is not TrialVerdict.CANNOT_TELL
        for ratio in POWER_RATIOS:
            right[ratio] += judge_in_turn(processes, ratio, POWER_PAIRS) is TrialVerdict.FASTER
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
            found.append(run_process(MICRO_BATCHES))
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
            wrong += judge_in_turn(processes, 1.0, MOST_PAIRS) is not TrialVerdict.CANNOT_TELL
            for ratio in POWER_RATIOS:
                right[ratio] += judge_in_turn(processes, ratio, POWER_PAIRS) is TrialVerdict.FASTER
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


def judge_in_turn(processes: Sequence[Process], speedup: float, most_pairs: int) -> TrialVerdict:
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
    return TrialVerdict.CANNOT_TELL


def judge_pairs(baseline: Sequence[Process], candidate: Sequence[Process]) -> PairComparison:
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


def judge_again(one: dict[str, Any]) -> TrialVerdict:
    """What today's statistics say of a stored comparison, pair by pair. One that older ones ended early has no more
    pairs than they needed."""
    baseline, candidate = sides_of(one)
    for pairs in range(1, len(baseline) + 1):
        found = judge_pairs(baseline[:pairs], candidate[:pairs])
        if found.decided:
            return found.verdict
    return TrialVerdict.CANNOT_TELL


def show(results: Sequence[dict[str, Any]]) -> None:
    """The figures so far, with what was asked of them."""
    live = [one for one in results if one["part"] == "live"]
    told = [judge_again(one) for one in live]
    wrong = sum(verdict is not TrialVerdict.CANNOT_TELL for verdict in told)
    print(
        f"live A/A: {wrong} of {len(live)} wrong (asked: at most 2 of 40; level {DECISION_LEVEL:.0%}); "
        f"longest {max((one['took_s'] for one in live), default=0):.0f} s, "
        f"load {sorted({one['load'] for one in live})} busy processes beside whatever else ran"
    )
    known = [one for one in results if one["part"] == "known"]
    told = [judge_again(one) for one in known]
    print(
        f"known {_words_of_known(known)}: {told.count(TrialVerdict.FASTER)} of {len(told)} right, "
        f"{told.count(TrialVerdict.SLOWER)} with the wrong sign, {told.count(TrialVerdict.CANNOT_TELL)} cannot tell "
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


def _words_of_known(known: Sequence[dict[str, Any]]) -> str:
    """The difference that was laid on, by the share that a micro-batch had of the longer step."""
    shares = [p.micro_batch_ratio for one in known for p in sides_of(one)[0] if p.micro_batch_ratio is not None]
    if not shares:
        return "5 % (calibrated by a sleep)"
    ratio = statistics.median(shares)
    return f"{ratio / (1 - ratio):.1%} (a micro-batch takes {ratio:.1%} of the longer step)"


def read_results() -> list[dict[str, Any]]:
    if not WORK.exists():
        return []
    return [json.loads(line) for line in WORK.read_text().splitlines() if line.strip()]


def read_table_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a published table, whose first line holds for all of them."""
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def write_raw_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    head = {
        "schema": "hotloop.table/1",
        "pass": "tune-aa",
        "commit": describe_commit(),
        "machine": {"system": platform.platform(), "cores": len(os.sched_getaffinity(0))},
        "date": time.strftime("%Y-%m-%d"),
        "trainer": "torch",
        "row_count": len(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in (head, *rows)))


def store(result: dict[str, Any]) -> None:
    WORK.parent.mkdir(parents=True, exist_ok=True)
    with WORK.open("a") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())
