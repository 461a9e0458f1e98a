"""Trainings that are killed at random moments and resumed -> benchmarks/results/preemption.json.

Proves that a resume at equal world size continues with the same bits, and that 2 ranks, then 1, then 2 lose and repeat
no sample. Every step that any run logs is compared with an uninterrupted run of the same length; work is resumable:
what the result file holds is not done again (`--fresh` begins anew). About ten minutes on two cores; `--quick` two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from hotloop.train.checkpoint import CheckpointError, check_files, list_checkpoints  # noqa: E402
from hotloop.train.marker import read_marker  # noqa: E402

LOOP = ROOT / "benchmarks" / "preemption_loop.py"
RESULT = ROOT / "benchmarks" / "results" / "preemption.json"


class Plan(NamedTuple):
    ranks: int
    number: int
    """The signal."""
    trials: int
    quick_trials: int
    options: tuple[str, ...] = ()
    """Of the training."""


PLANS = {
    "kill-9": Plan(1, signal.SIGKILL, 50, 6),
    "kill-9-of-two-ranks": Plan(2, signal.SIGKILL, 10, 1),
    "kill-9-of-two-shards": Plan(2, signal.SIGKILL, 10, 1, ("--sharded",)),
    "sigterm": Plan(1, signal.SIGTERM, 5, 1),
    "sigterm-torchrun": Plan(2, signal.SIGTERM, 10, 2),
    "sigterm-of-two-shards": Plan(2, signal.SIGTERM, 4, 1, ("--sharded",)),
    "sigusr1-torchrun": Plan(2, signal.SIGUSR1, 3, 1),
}
STEPS = {1: 1500, 2: 800}
Lines = dict[int, tuple[str, list[int]]]


def start(
    folder: Path, name: str, ranks: int, steps: int, *options: str, slow_saves_ms: int
) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(LOOP), str(folder / name), str(folder / f"{name}.losses"), "--steps", str(steps)]
    if ranks > 1:
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        run += ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "--shutdown-timeout", "90"]
        command[1:1] = run
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOTLOOP_SLOW_SAVES_MS": str(slow_saves_ms)}
    with open(folder / f"{name}.stderr", "ab") as errors:
        return subprocess.Popen(
            [*command, *options], env=environment, stdout=errors, stderr=errors, start_new_session=True
        )


def read_lines(path: Path) -> tuple[list[int], list[tuple[int, str, list[int]]]]:
    """Steps at which runs began, and every whole line (a killed process may leave half of one)."""
    starts, found = [], []
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        parts = line.split()
        if not line.endswith("\n") or len(parts) not in (2, 3):
            continue
        if parts[0] == "start":
            starts.append(int(parts[1]))
        else:
            found.append((int(parts[0]), parts[1], [int(one) for one in parts[2].split(",")] if len(parts) > 2 else []))
    return starts, found


def reference(folder: Path, ranks: int, *options: str, steps: int) -> list[Lines]:
    name = f"whole-{ranks}{''.join(options)}"
    process = start(folder, name, ranks, steps, *options, slow_saves_ms=0)
    if process.wait() != 0:
        raise SystemExit(f"the uninterrupted run failed: {(folder / f'{name}.stderr').read_text()[-2000:]}")
    return [
        {step: (loss, samples) for step, loss, samples in read_lines(folder / f"{name}.losses.{rank}")[1]}
        for rank in range(ranks)
    ]


def end_process(process: subprocess.Popen[bytes], ranks: int, number: int) -> None:
    """SIGKILL goes to everything at once, as when a machine is lost; other signals to torchrun or the process."""
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
        for child in ranks_of(process.pid) if ranks > 1 else ():
            os.kill(child, number)
    else:
        process.send_signal(number)


def ranks_of(agent: int) -> list[int]:
    """torchrun gives its workers sessions of their own."""
    try:
        return [int(one) for one in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
    except OSError:
        return []


def interrupt(folder: Path, kind: str, whole: list[Lines], choose: random.Random) -> dict[str, Any]:
    """One run of a chain, ended by a signal at a random moment after its first step (kill -9: also before)."""
    name = kind
    ranks, number, _, _, options = PLANS[kind]
    steps = STEPS[ranks]
    path = folder / f"{name}.losses"
    if any(
        found >= steps - 1 for found, _, _ in read_lines(Path(f"{path}.0"))[1]
    ):  # the chain is at its end: a new one
        shutil.rmtree(folder / name)
        for rank in range(ranks):
            Path(f"{path}.{rank}").unlink()
    before = len(read_lines(Path(f"{path}.0"))[0])
    known = [len(read_lines(Path(f"{path}.{rank}"))[1]) for rank in range(ranks)]
    begun = time.monotonic()
    process = start(folder, name, ranks, steps, *options, slow_saves_ms=choose.choice((0, 5, 15)))
    if number != signal.SIGKILL or choose.random() < 0.9:
        while len(read_lines(Path(f"{path}.0"))[0]) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(choose.uniform(0.02, 1.2))
    else:
        time.sleep(choose.uniform(0.0, 3.0))
    in_save = any(one.name.endswith(".tmp") for one in (folder / name).iterdir()) if (folder / name).exists() else False
    ended_itself = process.poll() is not None
    if not ended_itself:
        end_process(process, ranks, number)
    code = process.wait()
    time.sleep(0.3 if ranks > 1 else 0.0)
    damaged = []
    for one in list_checkpoints(folder / name):
        try:
            check_files(one)
        except CheckpointError as error:
            damaged.append(str(error))
    compared, different = 0, []
    for rank in range(ranks):
        for step, loss, samples in read_lines(Path(f"{path}.{rank}"))[1][known[rank] :]:
            compared += 1
            if whole[rank][step] != (loss, samples):
                different.append(step)
    starts = read_lines(Path(f"{path}.0"))[0]
    marker = read_marker(folder / name)
    return {
        "kind": kind,
        "after_ms": round((time.monotonic() - begun) * 1000),
        "in_save": in_save,
        "ended_itself": ended_itself,
        "exit_code": code,
        "started_at_step": starts[-1] if len(starts) > before else None,
        "compared_count": compared,
        "different_steps": different[:5],
        "named_but_damaged": damaged,
        "marker_step": None if marker is None else marker["step"],
        "marker_is_last_step": None
        if number == signal.SIGKILL
        else marker is not None
        and marker["step"] == max((step for step, _, _ in read_lines(Path(f"{path}.0"))[1]), default=None),
    }


def change_ranks(folder: Path) -> dict[str, Any]:
    """2 ranks to step 60, 1 to step 110, 2 to step 160; against 2 ranks throughout."""
    whole = reference(folder, 2, "--exact", steps=160)
    cut = []
    for ranks, steps in ((2, 60), (1, 110), (2, 160)):
        before = {rank: len(read_lines(folder / f"ranks.losses.{rank}")[1]) for rank in range(2)}
        process = start(folder, "ranks", ranks, steps, "--exact", slow_saves_ms=0)
        if process.wait() != 0:
            raise SystemExit((folder / "ranks.stderr").read_text()[-2000:])
        cut.append([read_lines(folder / f"ranks.losses.{rank}")[1][before[rank] :] for rank in range(ranks)])
    worst, wrong, repeated, seen = 0.0, [], [], set()
    for part in cut:
        for lines in zip(*part, strict=True):
            step = lines[0][0]
            repeated += [step] if step in seen else []
            seen.add(step)
            samples = {sample for line in lines for sample in line[2]}
            expected = {sample for rank in whole for sample in rank[step][1]}
            wrong += [step] if samples != expected else []
            loss = sum(float.fromhex(line[1]) for line in lines) / len(lines)
            expected_loss = sum(float.fromhex(rank[step][0]) for rank in whole) / 2
            worst = max(worst, abs(loss - expected_loss) / max(abs(expected_loss), 1e-12))
    return {
        "kind": "ranks-2-1-2",
        "steps_count": len(seen),
        "steps_with_other_samples": wrong,
        "repeated_steps": repeated,
        "missing_steps": sorted(set(whole[0]) - seen),
        "most_loss_difference_ratio": worst,
    }


def summarize(trials: list[dict[str, Any]]) -> dict[str, Any]:
    table = {}
    for kind in PLANS:
        mine = [one for one in trials if one["kind"] == kind]
        table[kind] = {
            "trials_count": len(mine),
            "in_save_count": sum(one["in_save"] for one in mine),
            "compared_steps_count": sum(one["compared_count"] for one in mine),
            "different_count": sum(bool(one["different_steps"]) for one in mine),
            "named_but_damaged_count": sum(bool(one["named_but_damaged"]) for one in mine),
            "without_marker_count": sum(one["marker_is_last_step"] is False for one in mine if not one["ended_itself"]),
        }
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--only", choices=[*PLANS, "ranks-2-1-2"], default=None)
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args()
    trials: list[dict[str, Any]] = []
    if options.result.exists() and not options.fresh:
        stored = json.loads(options.result.read_text())
        # Trials of another commit are of another pass.
        trials = stored["trials"] if stored.get("commit") == describe_commit() else []
    choose = random.Random(len(trials) + 7)

    def keep() -> None:
        machine = {"cpu_count": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
        content = {
            "commit": describe_commit(),
            "machine": machine,
            "date": time.strftime("%Y-%m-%d"),
            "summary": summarize(trials),
            "trials": trials,
        }
        options.result.parent.mkdir(exist_ok=True)
        temporary = options.result.with_suffix(".tmp")
        temporary.write_text(draw_raw(content))
        temporary.replace(options.result)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole: dict[tuple[Any, ...], list[Lines]] = {}
        for kind, plan in PLANS.items():
            if options.only not in (None, kind):
                continue
            wanted = plan.quick_trials if options.quick else plan.trials
            alike = (plan.ranks, *plan.options)
            while sum(one["kind"] == kind for one in trials) < wanted:
                if alike not in whole:
                    whole[alike] = reference(folder, plan.ranks, *plan.options, steps=STEPS[plan.ranks])
                trials.append(interrupt(folder, kind, whole[alike], choose))
                keep()
                print(json.dumps(trials[-1]), flush=True)
        if options.only in (None, "ranks-2-1-2") and not any(one["kind"] == "ranks-2-1-2" for one in trials):
            trials.append(change_ranks(folder))
            keep()
            print(json.dumps(trials[-1]), flush=True)
    print(json.dumps(summarize(trials), indent=1))
    bad = [one for one in trials if one.get("different_steps") or one.get("named_but_damaged")]
    bad += [one for one in trials if one.get("steps_with_other_samples") or one.get("missing_steps")]
    bad += [one for one in trials if one.get("marker_is_last_step") is False and not one["ended_itself"]]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
