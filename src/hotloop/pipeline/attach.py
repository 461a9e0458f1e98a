"""A process's id, a run, or nothing -> AttachReport: the only place that knows the order."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotloop import __version__
from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.live import LiveRank, LiveRun
from hotloop.core.snapshot import AttachReport, Stand, Verdict
from hotloop.snapshot.family import Training, find_trainings
from hotloop.snapshot.judge import LONGEST_S, Judge
from hotloop.snapshot.watch import Watched, watch
from hotloop.trace.recording import find_run

from .live import LiveReader

WORST: tuple[Verdict, ...] = ("hung", "slow", "cannot tell", "saving", "compiling", "starting", "healthy")
ATTACH_VARIABLE = "HOTLOOP_ATTACH"


def attach(target: str | None) -> list[AttachReport]:
    """One report of each training, the worst first. ``target`` is a process's id, a run folder or its name.

    Raises UsageError where there is no such process, or none that trains.
    """
    pid = _find_pid(target)
    trainings = find_trainings(pid, {})
    if not any(training.ranks for training in trainings):
        where = "on this machine" if pid is None else f"in process {pid} or below it"
        raise UsageError(f"no process {where} has torch loaded, as far as this user may see")
    reports = [attach_to(training) for training in trainings]
    return sorted(reports, key=lambda report: WORST.index(report.verdict))


def _find_pid(target: str | None) -> int | None:
    if target is None:
        return None
    if target.isdecimal():
        if not os.path.exists(f"/proc/{target}"):
            raise UsageError(f"no process {target} on this machine; give the id of a training or of its launcher")
        return int(target)
    try:
        folder = find_run(target, Path.cwd())
    except RecordingError as error:
        raise UsageError(f"{error}; or give a process's id") from error
    run = LiveReader(folder).read()
    here = [rank.pid for rank in run.ranks if rank.host == platform.node() and os.path.exists(f"/proc/{rank.pid}")]
    if not here:
        hosts = ", ".join(sorted({rank.host for rank in run.ranks})) or "none"
        raise UsageError(f"no rank of {folder.name} runs on this machine (it was recorded on: {hosts})")
    return here[0]


def attach_to(training: Training) -> AttachReport:
    """Watch one training and judge it."""

    def is_enough(watched: Sequence[Watched], elapsed_s: float) -> bool:
        return Judge(training, watched, elapsed_s).is_enough()

    watched = watch(training, is_enough, LONGEST_S)
    elapsed_s = max((process.watched_s for process in watched), default=0.0)
    judge = Judge(training, watched, elapsed_s)
    judged = judge.judge()
    recorded = _read_recorded(training)
    since_s, is_bound = judged.since_s, True
    ages_s = [rank.age_s for rank in recorded.values() if rank.age_s is not None]
    if judged.verdict == "hung" and ages_s:
        since_s, is_bound = max(since_s or 0.0, min(ages_s)), False
    limits = [
        f"process {process.pid}: its Python calls were not read: {process.member.unreadable}"
        for process in judge.ranks
        if process.member.unreadable is not None
    ]
    return AttachReport(
        tool_version=__version__,
        verdict=judged.verdict,
        reason=judged.reason,
        since_s=None if since_s is None else round(since_s, 1),
        since_is_bound=is_bound,
        culprits=tuple(_with_steps(stand, recorded) for stand in judged.culprits),
        ranks=tuple(_with_steps(judge.stand(process), recorded) for process in judge.ranks),
        waits_for=judged.waits_for,
        phase=judged.phase,
        findings=judged.findings,
        advice=judged.advice,
        limits=tuple(limits),
        watched_s=round(elapsed_s, 2),
        samples_count=max((len(process.looks) for process in judge.ranks), default=0),
    )


def _read_recorded(training: Training) -> dict[int, LiveRank]:
    """What the agent recorded of the ranks, by process; none without it."""
    folders = set()
    for member in training.ranks:
        try:
            folders.add(json.loads(member.environment.get(ATTACH_VARIABLE, "{}")).get("run"))
        except (ValueError, AttributeError):
            continue
    runs: list[LiveRun] = [LiveReader(Path(folder)).read() for folder in folders if folder]
    return {rank.pid: rank for run in runs for rank in run.ranks if rank.host == platform.node()}


def _with_steps(stand: Stand, recorded: dict[int, LiveRank]) -> Stand:
    rank = recorded.get(stand.pid or 0)
    return stand if rank is None else replace(stand, steps_count=rank.steps_count)
