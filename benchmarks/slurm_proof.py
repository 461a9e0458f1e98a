"""What `hotloop launch --target slurm` writes, on two real slurmd (docs/cluster.md).

    python benchmarks/slurm_proof.py [CASE ...]    what the table lacks, or these again: a minute and a half each

Each case is a chain: the training starts, is preempted after some steps, resumes, and its final parameters are compared
bit for bit with those of an undisturbed run on the same two nodes. Needs root, slurmctld, slurmd and munged.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import passes
from passes import ROOT

sys.path.insert(0, str(ROOT / "tests" / "launch"))
from slurm_cluster import SlurmCluster, lacks_slurm, slurm_cluster

TRAINING = ROOT / "benchmarks" / "slurm_training.py"
STEPS = 120
SAVE_S = 1.0


@dataclass(frozen=True)
class Case:
    """``points``: steps after which the training is preempted, one preemption each."""

    kind: str
    how: str
    points: tuple[int, ...]
    workers: int = 2
    user_signal: bool = True
    time: str | None = None
    before: tuple[str, ...] = ()
    """Words in front of the training."""


UNDER_HOTLOOP = (str(Path(sys.executable).with_name("hotloop")), "run", "--no-probe", "--")
CASES = {
    "plain-batch-term": Case("plain", "scancel --batch --signal=TERM", (15, 47, 83)),
    "trainer-batch-term": Case("trainer", "scancel --batch --signal=TERM", (15, 47, 83)),
    "plain-hotloop-run": Case("plain", "scancel --batch --signal=TERM", (33,), before=UNDER_HOTLOOP),
    "plain-step-usr1": Case("plain", "scancel --signal=USR1", (33,)),
    "plain-step-term": Case("plain", "scancel --signal=TERM", (33,)),
    "plain-step-term-no-workers": Case("plain", "scancel --signal=TERM", (33,), workers=0),
    "trainer-step-usr1": Case("trainer", "scancel --signal=USR1", (33,)),
    "plain-requeue": Case("plain", "scontrol requeue", (33, 71)),
    "trainer-requeue": Case("trainer", "scontrol requeue", (33, 71)),
    "plain-time-limit": Case("plain", "time limit", (), time="1"),
    "trainer-time-limit": Case("trainer", "time limit", (), time="1"),
    "plain-urgent": Case("plain", "urgent job, preempt_send_user_signal", (33,)),
    "trainer-urgent": Case("trainer", "urgent job, preempt_send_user_signal", (33,)),
    "plain-urgent-raw": Case("plain", "urgent job, SIGTERM to every process", (33,), user_signal=False),
    "plain-node-lost": Case("plain", "kill -9 of a slurmd and its tasks", (33,)),
    "trainer-node-lost": Case("trainer", "kill -9 of a slurmd and its tasks", (33,)),
}


def write_script(folder: Path, case: Case, *, steps: int = STEPS, step_s: float = 0.1) -> Path:
    """The sbatch script that the command line writes."""
    script = folder / "train.sbatch"
    words = [sys.executable, "-m", "hotloop", "launch", "--target", "slurm", "--nodes", "2", "--gpus-per-node", "0"]
    words += ["--cpus", "1", "--save-s", str(SAVE_S), "-o", str(script)]
    words += ["--time", case.time] if case.time is not None else []
    words += ["--", *case.before, sys.executable, str(TRAINING), case.kind, str(folder), "--steps", str(steps)]
    words += ["--workers", str(case.workers), "--step-s", str(step_s)]
    words += ["--save-s", str(SAVE_S)] if case.kind == "plain" else []
    subprocess.run(words, check=True, capture_output=True)
    return script


def read_log(folder: Path) -> list[tuple[str, int, float]]:
    """What happened, at which step and when."""
    path = folder / "log.txt"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(row[0], int(row[1]), float(row[2])) for row in rows]


def wait_for_step(folder: Path, starts: int, after_steps: int, step_s: float) -> None:
    """Until the training's start number ``starts`` has made about this many steps."""
    end = time.monotonic() + 120
    while sum(row[0] == "start" for row in read_log(folder)) < starts:
        if time.monotonic() > end:
            raise TimeoutError(f"the training did not start for the {starts}. time: {read_log(folder)}")
        time.sleep(0.1)
    time.sleep(after_steps * step_s)


def preempt(cluster: SlurmCluster, case: Case, job: int) -> None:
    if case.how.startswith("scancel"):
        cluster.run(*case.how.split(), str(job))
    elif case.how == "scontrol requeue":
        cluster.run("scontrol", "requeue", str(job))
    elif case.how.startswith("urgent"):
        short = cluster.folder / "urgent.sh"
        short.write_text("#!/bin/bash\nsleep 2\n")
        cluster.submit(short, "--partition=urgent", "--nodes=2", "--output=/dev/null")
    else:
        cluster.kill_node("n2")
        cluster.wait_for(job, ("PENDING", "REQUEUED"), 60)
        cluster.start_node("n2")


def run_chain(cluster: SlurmCluster, folder: Path, case: Case) -> dict[str, Any]:
    folder.mkdir()
    step_s = 0.25 if case.time is not None else 0.1
    script = write_script(folder, case, step_s=step_s)
    job = cluster.submit(script)
    done, signalled = 0, []
    for number, point in enumerate(case.points, 1):
        wait_for_step(folder, number, point - done, step_s)
        signalled.append(time.time())
        preempt(cluster, case, job)
        wait_for_restart(cluster, job, number)
        done = point
    end = cluster.wait_for(job, ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"))
    log = read_log(folder)
    starts = [step for what, step, _ in log if what == "start"]
    stops = [(step, when) for what, step, when in log if what == "stop"]
    return {
        "state": end["JobState"],
        "restarts": int(end["Restarts"]),
        "started_at_steps": starts,
        "stopped_at_steps": [step for step, _ in stops],
        "saved_after_s": [round(when - sent, 2) for (_, when), sent in zip(stops, signalled, strict=False)],
        "final": (folder / "final.txt").read_text() if (folder / "final.txt").exists() else None,
        "output": read_output(folder),
    }


def wait_for_restart(cluster: SlurmCluster, job: int, count: int) -> None:
    end = time.monotonic() + 90
    while True:
        found = cluster.show(job)
        if int(found["Restarts"]) >= count or found["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"):
            return
        if time.monotonic() > end:
            raise TimeoutError(f"job {job} was not requeued: {found['JobState']}, {found['Reason']}")
        time.sleep(0.2)


def read_output(folder: Path) -> list[str]:
    """What the log says of loader workers that were ended: the sign of a signal that reached too many."""
    text = "".join(one.read_text(errors="replace") for one in folder.glob("*.log"))
    found = sorted(
        set(re.findall(r"DataLoader worker \(pid.*?\) is killed by signal: \w+|Address already in use", text))
    )
    return [re.sub(r"\d+", "N", one) for one in found][:2]


@cache
def final_digest(kind: str) -> str:
    """The final parameters of an undisturbed run."""
    with tempfile.TemporaryDirectory() as place, slurm_cluster(Path(place) / "cluster", user_signal=True) as cluster:
        folder = Path(place) / "whole"
        folder.mkdir()
        job = cluster.submit(write_script(folder, Case(kind, "undisturbed", ()), step_s=0.0))
        cluster.wait_for(job, ("COMPLETED",))
        return (folder / "final.txt").read_text()


def measure(name: str) -> dict[str, Any]:
    case = CASES[name]
    expected = final_digest(case.kind)
    with (
        tempfile.TemporaryDirectory() as place,
        slurm_cluster(Path(place) / "cluster", user_signal=case.user_signal) as cluster,
    ):
        try:
            row = run_chain(cluster, Path(place) / "chain", case)
        except TimeoutError as error:
            row = {"state": f"gave up: {error}", "final": None, "started_at_steps": [], "stopped_at_steps": []}
    is_equal = row.pop("final") == expected
    return {**vars(case), "before": " ".join(case.before[1:]), **row, "is_equal": is_equal, "failed": not is_equal}


def draw_passage(table: Mapping[str, Any]) -> str:
    """What docs/cluster.md says of the cases."""
    rows = table["rows"]
    saved_s = [one for row in rows for one in row.get("saved_after_s", ())]
    return (
        f"On {table['date']}, with {table['versions'].partition(',')[0]}, {sum(row['is_equal'] for row in rows)} of "
        f"{len(rows)} restart chains ended with the same parameters, bit for bit, as an undisturbed run. In "
        f"{len(saved_s)} cases, the job saved a checkpoint when it was stopped. The slowest of these saves finished "
        f"{max(saved_s):.1f} s after the signal; a save alone takes {table['save_s']:g} s."
    )


def main() -> int:
    if lacks_slurm():
        print("slurmctld, slurmd, munged and root are needed", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the daemons end with this process
    slurm = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    head = {"versions": slurm, "steps": STEPS, "save_s": SAVE_S}
    return passes.measure(__doc__, "slurm.json", {name: partial(measure, name) for name in CASES}, head)


if __name__ == "__main__":
    sys.exit(main())
