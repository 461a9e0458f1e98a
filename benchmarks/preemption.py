"""Trainings that are killed at random moments and resumed (docs/trainer.md).

    python benchmarks/preemption.py [CASE ...]    what the table lacks, or these again

Proves that a resume at equal world size continues with the same bits, and that 2 ranks, then 1, then 2 lose and repeat
no sample. Every step that any run logs is compared with an uninterrupted run of the same length. About ten minutes on
two cores.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import passes
from passes import ROOT

from hotloop.train.checkpoint import CheckpointError, check_files, list_checkpoints
from hotloop.train.marker import read_marker

LOOP = ROOT / "benchmarks" / "preemption_loop.py"


class Plan(NamedTuple):
    ranks: int
    number: int
    """The signal."""
    trials: int
    options: tuple[str, ...] = ()
    """Of the training."""


PLANS = {
    "kill-9": Plan(1, signal.SIGKILL, 50),
    "kill-9-of-two-ranks": Plan(2, signal.SIGKILL, 10),
    "kill-9-of-two-shards": Plan(2, signal.SIGKILL, 10, ("--sharded",)),
    "sigterm": Plan(1, signal.SIGTERM, 5),
    "sigterm-torchrun": Plan(2, signal.SIGTERM, 10),
    "sigterm-of-two-shards": Plan(2, signal.SIGTERM, 4, ("--sharded",)),
    "sigusr1-torchrun": Plan(2, signal.SIGUSR1, 3),
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
    ranks, number, _, options = PLANS[kind]
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


def run_chain(kind: str) -> list[dict[str, Any]]:
    """The trials of a plan, each of which goes on where the one before it was ended."""
    plan, choose = PLANS[kind], random.Random(7)
    with tempfile.TemporaryDirectory() as name:
        whole = reference(Path(name), plan.ranks, *plan.options, steps=STEPS[plan.ranks])
        rows = [interrupt(Path(name), kind, whole, choose) for _ in range(plan.trials)]
    for row in rows:
        is_unmarked = row["marker_is_last_step"] is False and not row["ended_itself"]
        row["failed"] = bool(row["different_steps"] or row["named_but_damaged"] or is_unmarked)
    return rows


def change_ranks() -> dict[str, Any]:
    """2 ranks to step 60, 1 to step 110, 2 to step 160; against 2 ranks throughout."""
    with tempfile.TemporaryDirectory() as name:
        row = _change_ranks(Path(name))
    return {**row, "failed": bool(row["steps_with_other_samples"] or row["missing_steps"])}


def _change_ranks(folder: Path) -> dict[str, Any]:
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
        "steps_count": len(seen),
        "steps_with_other_samples": wrong,
        "repeated_steps": repeated,
        "missing_steps": sorted(set(whole[0]) - seen),
        "most_loss_difference_ratio": worst,
    }


def draw_passage(table: Mapping[str, Any]) -> str:
    """What docs/trainer.md says of the trials."""
    rows = passes.read_rows(table)
    compared = sum(row.get("compared_count", 0) for row in rows)
    different = sum(len(row.get("different_steps", ())) for row in rows)
    killed = [row for row in rows if "in_save" in row]
    return (
        f"On {table['date']} {len(killed)} trainings were ended so, {sum(row['in_save'] for row in killed)} of them "
        f"during a save. Of {compared:,} steps compared, {different} had other bits."
    )


if __name__ == "__main__":
    chains = {kind: partial(run_chain, kind) for kind in PLANS}
    sys.exit(passes.measure(__doc__, "preemption.json", {**chains, "ranks-2-1-2": change_ranks}))
