"""A strategy -> one process of the command under it, classified by how it ended, with what it measured.

What knows recordings and the agent arrives as arguments: ``environment`` attaches, ``measure`` reads.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop.core.applied import AppliedTechnique
from hotloop.core.measurement import Measurement
from hotloop.core.recording import OUTCOME_FILE, outcome_to_json
from hotloop.core.strategy import Strategy

from .workspace import WorkspacePlan, make_workspace, own_place, remove_workspace

AttachTrial = Callable[[Strategy, Path, Mapping[str, Any]], AbstractContextManager[Mapping[str, str]]]
"""Strategy, run folder and the agent's options for a trial -> the environment of its process."""

SUPERVISOR = Path(__file__).with_name("supervisor.py")

OK, OOM, CRASH, HANG, TIMEOUT, NO_TRAINING = "ok", "oom", "crash", "hang", "timeout", "no training"
LOST = "lost"
"""How a process of a trial ended; what was lost says nothing of the command."""
_MEMORY_WORDS = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|Cannot allocate memory|\bMemoryError\b|std::bad_alloc", re.I
)
_LOG_BYTES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One process of an arm: how it ended, why, and what it measured (None unless it ended OK)."""

    ended: str
    reason: str
    duration_s: float
    measured: Measurement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits:
    """When a trial is over. ``steps`` None: after ``seconds`` of training."""

    steps: int | None
    seconds: float | None
    timeout_s: float
    start_s: float
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how trials of one command run."""

    command: tuple[str, ...]
    plan: WorkspacePlan
    folder: Path
    environment: AttachTrial
    measure: Callable[[Path], Measurement | None]
    """Run folder -> what was measured; None when no training was seen."""
    least_memory_ratio: float = 0.03
    patched: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the working copy that differ from the user's, by their path in it."""


def run_trial(bench: Bench, strategy: Strategy, limits: TrialLimits, name: str) -> Ran:
    """Run the command once under the strategy, in a working copy, and clean up after it."""
    run_folder = bench.folder / "trials" / name
    # A tuning that was killed left its last trial half done: marks of its end would end this one.
    shutil.rmtree(run_folder, ignore_errors=True)
    shutil.rmtree(bench.folder / "work" / name, ignore_errors=True)
    (run_folder / "processes").mkdir(parents=True, exist_ok=True)
    workspace = make_workspace(bench.plan, bench.folder / "work" / name)
    try:
        write_files(workspace, bench.patched)
        options = {
            "folder": str(run_folder),
            "steps": limits.steps,
            "seconds": limits.seconds,
            "least_steps": 20,
        }
        with bench.environment(strategy, run_folder, options) as environment:
            answer = run_supervised(make_request(bench, limits, workspace, run_folder, environment))
    finally:
        remove_workspace(workspace)
    write_outcome(run_folder, answer)
    ran = _judge_end(answer, run_folder, bench.measure)
    if ran.measured is None:
        return ran
    applied = tuple(_restore_place(one, str(workspace), str(bench.plan.source)) for one in ran.measured.applied)
    return replace(ran, measured=replace(ran.measured, applied=applied))


def make_request(
    bench: Bench, limits: TrialLimits, workspace: Path, run_folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """What the supervisor has to know of a process that it starts."""
    return {
        "command": list(bench.command),
        "cwd": str(workspace),
        "environment": protect_environment(environment),
        "folder": str(run_folder),
        "mark": uuid.uuid4().hex,
        "timeout_s": limits.timeout_s,
        "start_s": limits.start_s,
        "stall_s": limits.stall_s,
        "least_memory_ratio": bench.least_memory_ratio,
    }


def _restore_place(one: AppliedTechnique, workspace: str, source: str) -> AppliedTechnique:
    """The applied techniques, each at its place in the user's own file, not in the working copy."""
    if one.where is None:
        return one
    return replace(one, where=replace(one.where, file=one.where.file.replace(workspace, source, 1)))


def write_files(workspace: Path, files: Mapping[str, bytes]) -> None:
    """Put files into a working copy. A large one, or its folder, is a link to the user's own, which stays as it is."""
    for name, content in files.items():
        place = own_place(workspace, name)
        mode = place.stat().st_mode & 0o7777
        place.unlink()
        place.write_bytes(content)
        place.chmod(mode)


def run_supervised(request: Mapping[str, Any]) -> dict[str, Any]:
    """Hand a request to a supervisor and wait for its reply; when we are interrupted, it ends the trial."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        text = process.stdout.read()
    except BaseException:
        process.stdin.close()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    finally:
        process.stdin.close()
        process.stdout.close()
    process.wait()
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        answer = {"how": "lost", "detail": "the process that supervised the trial was killed", "duration_s": 0.0}
    return answer


def protect_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Free ports for launchers, and no trial in the user's experiment trackers."""
    changed = dict(environment)
    port = str(free_port())
    changed["PET_MASTER_PORT"] = port  # torchrun's default where its command line names none
    if "MASTER_PORT" in changed:
        changed["MASTER_PORT"] = port
    changed["WANDB_MODE"] = "offline"
    changed["MLFLOW_TRACKING_URI"] = "file:./mlruns"
    return changed


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def write_outcome(run_folder: Path, answer: Mapping[str, Any]) -> None:
    """outcome.json, as `hotloop run` leaves it; none of a command that was ended before it could end itself."""
    exit_code, number = 0 if answer["how"] == "stopped" else answer.get("exit_code"), answer.get("signal")
    if exit_code is not None or number is not None:
        text = outcome_to_json(exit_code=exit_code, signal=number, duration_s=answer["duration_s"])
        (run_folder / OUTCOME_FILE).write_text(text)


def _judge_end(answer: Mapping[str, Any], run_folder: Path, measure: Callable[[Path], Measurement | None]) -> Ran:
    def ended(kind: str, reason: str, measured: Measurement | None = None) -> Ran:
        return Ran(ended=kind, reason=reason, duration_s=float(answer["duration_s"]), measured=measured)

    how, detail = answer["how"], str(answer["detail"])
    output = read_tail(run_folder / "stderr.log") or read_tail(run_folder / "stdout.log")
    last = last_line(output)
    if how in ("hang", "timeout"):
        return ended(HANG if how == "hang" else TIMEOUT, detail)
    if how == "memory":
        return ended(OOM, detail)
    if how in ("lost", "abandoned"):
        return ended(LOST, detail)
    if how == "not started":
        return ended(CRASH, detail)
    code, number = answer.get("exit_code"), answer.get("signal")
    stopped = any(run_folder.glob("stopped-*"))
    if how == "exited" and not stopped and (number is not None or code):
        if _MEMORY_WORDS.search(output):
            return ended(OOM, f"out of memory: {last}")
        if number == 9:
            return ended(OOM, "killed (signal 9), probably because memory ran out")
        what = f"ended by signal {number}" if number is not None else f"exit code {code}"
        return ended(CRASH, f"{what}: {last}" if last else what)
    measured = measure(run_folder)
    if measured is None:
        return ended(NO_TRAINING, "no training was observed")
    return ended(OK, "", measured)


def read_left(run_folder: Path, pid: int) -> Mapping[str, Any]:
    """The losses, gradient norms and pace that a trial's process wrote; empty where it wrote nothing."""
    try:
        left = json.loads((run_folder / f"trial-{pid}.json").read_text())
    except (OSError, ValueError):
        return {}
    return left if isinstance(left, dict) else {}


def read_tail(path: Path) -> str:
    """The end of a log, empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def last_line(text: str) -> str:
    """The last line that names an error, else the last line; cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (named or lines or [""])[-1][:200]


def pick_unit(measured: Sequence[Measurement]) -> str:
    """The unit that all processes counted; steps where their steps hold equally much."""
    for unit, field_name in (("token", "tokens_per_step"), ("sample", "samples_per_step")):
        counts = [getattr(one, field_name) for one in measured]
        if all(counts) and max(counts) > 1.02 * min(counts):
            return unit
        if all(counts):
            return "step"
    return "step"


def time_per_unit(one: Measurement, unit: str) -> float:
    """ns per step, sample or token."""
    per_step = {"step": 1.0, "sample": one.samples_per_step, "token": one.tokens_per_step}[unit]
    if not per_step:
        raise ValueError(f"the number of {unit}s is unknown")
    return one.step_ns / per_step


OBSERVE_RATIO = 0.1
"""Share of the budget that the first look may take for its steps, within these seconds."""
OBSERVE_S = (3.0, 30.0)
PATCH_RATIO = 0.15
"""Share of the budget that is kept for running the patched source, where a patch is made."""
NEXT_FACTOR = 3
"""The budget that a report suggests where this one was too small, over this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``whole_s`` seconds from ``begun_s`` on (a reading of the clock); ``kept_ratio`` of them are kept for a patch."""

    whole_s: float
    begun_s: float = 0.0
    kept_ratio: float = 0.0

    @property
    def until_s(self) -> float:
        """When everything ends."""
        return self.begun_s + self.whole_s

    @property
    def search_until_s(self) -> float:
        """When the search for a strategy ends."""
        return self.until_s - self.kept_ratio * self.whole_s

    @property
    def observation(self) -> TrialLimits:
        """How long the first look at the unchanged command may take."""
        return TrialLimits(
            steps=None,
            seconds=min(max(OBSERVE_S[0], OBSERVE_RATIO * self.whole_s), OBSERVE_S[1]),
            timeout_s=max(60.0, 0.5 * self.whole_s),
            start_s=max(60.0, 0.4 * self.whole_s),
            stall_s=max(30.0, 0.2 * self.whole_s),
        )

    @property
    def next_minutes(self) -> int:
        """The budget of a tuning that continues where this one stopped for lack of time."""
        return math.ceil(NEXT_FACTOR * self.whole_s / 60)
