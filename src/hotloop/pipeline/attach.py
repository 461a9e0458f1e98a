"""A process's id, a run, or nothing -> AttachReport: the only place that knows the order."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotloop import __version__
from hotloop.core.decode import decode_contract
from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.events import REQUEST_NAME, WANTS_TRACE
from hotloop.core.live import ENDED, LiveRank
from hotloop.core.redact import redact_command
from hotloop.core.snapshot import ANSWER, ASKED, STALLS_FOLDER, AttachReport, Stand, Verdict
from hotloop.evidence.snapshot.family import RunningTraining, find_trainings
from hotloop.evidence.snapshot.flight import collect_dumps, find_difference
from hotloop.evidence.snapshot.judge import LONGEST_S, Judge, differing
from hotloop.evidence.snapshot.source import ProcessSource
from hotloop.evidence.snapshot.waits import COLLECTIVE
from hotloop.evidence.snapshot.watch import Watched, watch
from hotloop.evidence.trace.recording import find_run

from .live import LiveReader

WORST: tuple[Verdict, ...] = ("hung", "slow", "cannot tell", "saving", "compiling", "starting", "healthy")
ATTACH_VARIABLE = "HOTLOOP_ATTACH"
ANSWER_S = 9.5
TRACE_S = 120.0
"""How long a requested trace may take: the steps until the request is seen, the recorded steps, and the file."""


def attach(target: str | None, *, ask: bool = True) -> list[AttachReport]:
    """One report of each training, the worst first. ``target`` is a process's id, a run folder or its name.

    Ranks that cannot be read from here are asked for from the ``hotloop run`` of their host, if ``ask`` allows it.

    Raises UsageError where there is no such process, or none that trains.
    """
    pid, run = _find_target(target)
    trainings = [] if pid is None and run is not None else find_trainings(pid, {})
    if run is None and not any(training.ranks for training in trainings):
        where = "on this machine" if pid is None else f"in process {pid} or below it"
        raise UsageError(f"no process {where} has torch loaded, as far as this user can see")
    reports = [attach_to(training) for training in trainings]
    folders = {folder for training in trainings for folder in _run_folders(training)}
    run = run or (folders.pop() if len(folders) == 1 else None)
    hosts = _list_hosts(run) if run is not None else set()
    if ask and run is not None and (hosts - {platform.node()} or all(report.limits for report in reports)):
        answers = _ask(run, hosts)
        if not answers and not reports:
            raise UsageError(f"no run of {run.name} responds; it ran on {', '.join(sorted(hosts)) or 'no host'}")
        reports = [merge_reports(answers)] if answers else reports
    return sorted(reports, key=lambda report: WORST.index(report.verdict))


def ask_of_training(target: str | None, wants: int, steps: int = 0) -> list[Path]:
    """Ask a running run for a trace of ``steps`` steps, or for what else ``wants`` says (core/events.py).

    Returns the traces that were recorded. Raises UsageError where the run is over, or does not respond in time.
    """
    _, run = _find_target(target)
    if run is None:
        raise UsageError(
            "name a run: only a training process that hotloop started accepts requests, for example "
            "`hotloop attach last`"
        )
    live = LiveReader(run).read()
    if live.state == ENDED or not live.ranks:
        state = "is over" if live.state == ENDED else "has no step yet"
        raise UsageError(f"{run.name} {state}, so it accepts no requests")
    traces = set(run.glob("traces/*"))
    request = run / REQUEST_NAME
    serial = time.time_ns() >> 20 & 0x7FFF_FFFF
    try:
        request.with_suffix(".new").write_text(json.dumps({"word": serial << 32 | steps << 8 | wants}))
        request.with_suffix(".new").replace(request)
    except OSError as error:
        raise UsageError(f"{run} cannot be written to: {error}") from error
    give_up_s = time.monotonic() + (TRACE_S if wants & WANTS_TRACE else 0.0)
    recorded: list[Path] = []
    while time.monotonic() < give_up_s and len(recorded) < len(live.ranks):
        time.sleep(0.2)
        recorded = sorted(path for path in set(run.glob("traces/*")) - traces if _is_complete(path))
    if wants & WANTS_TRACE and not recorded:
        raise UsageError(
            f"no trace arrived within {TRACE_S:.0f} s: training has stalled, steps take longer, or another profiler "
            "is running; if a trace arrives later, it is in the run's folder traces/"
        )
    return recorded


def _is_complete(trace: Path) -> bool:
    """Whether a trace that torch writes has its last bracket."""
    with trace.open("rb") as file:
        file.seek(-min(2, trace.stat().st_size), os.SEEK_END)
        return file.read().rstrip().endswith(b"}")


def _find_target(target: str | None) -> tuple[int | None, Path | None]:
    """A process of this machine, or None; and the run folder, if it was given."""
    if target is None:
        return None, None
    if target.isdecimal():
        if not os.path.exists(f"/proc/{target}"):
            raise UsageError(
                f"no process {target} on this machine; give the id of a training process or of its launcher"
            )
        return int(target), None
    try:
        folder = find_run(target, Path.cwd())
    except RecordingError as error:
        raise UsageError(f"{error}; or give a process's id") from error
    ranks = LiveReader(folder).read().ranks
    here = [rank.pid for rank in ranks if rank.host == platform.node() and os.path.exists(f"/proc/{rank.pid}")]
    return (here[0] if here else None), folder


def _list_hosts(run: Path) -> set[str]:
    return {rank.host for rank in LiveReader(run).read().ranks}


def _ask(run: Path, hosts: set[str]) -> list[AttachReport]:
    """The view of each host's ``hotloop run``, if it responds in time."""
    folder = run / STALLS_FOLDER
    try:
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{ANSWER}-*.json"):
            old.unlink()
        (folder / ASKED).touch()
        answers: list[Path] = []
        give_up_s = time.monotonic() + ANSWER_S
        while time.monotonic() < give_up_s and len(answers) < max(1, len(hosts)):
            time.sleep(0.1)
            answers = list(folder.glob(f"{ANSWER}-*.json"))
        (folder / ASKED).unlink(missing_ok=True)
        return [decode_contract(AttachReport, json.loads(path.read_text())) for path in answers]
    except (OSError, ValueError) as error:
        raise UsageError(f"requests cannot be sent to {run}: {error}") from error


def merge_reports(reports: Sequence[AttachReport]) -> AttachReport:
    """One report over all hosts: if it is hung, the ranks that differ are determined again among all."""
    worst = min(reports, key=lambda report: WORST.index(report.verdict))
    ranks = tuple(sorted((rank for report in reports for rank in report.ranks), key=lambda rank: rank.rank or 0))
    culprits = worst.culprits
    if worst.verdict == "hung" and len(reports) > 1:
        named = [stand for report in reports for stand in report.culprits if stand.wait != COLLECTIVE]
        culprits = tuple(named or [ranks[at] for at in differing(ranks, [False] * len(ranks))])
    limits = tuple(dict.fromkeys(limit for report in reports for limit in report.limits))
    return replace(worst, ranks=ranks, culprits=culprits, limits=limits)


def attach_to(training: RunningTraining) -> AttachReport:
    """Watch one training and judge it."""

    source = ProcessSource((training.ranks or training.members)[0].pid)

    def is_enough(watched: Sequence[Watched], elapsed_s: float) -> bool:
        return Judge(training, watched, elapsed_s, source).is_enough()

    watched = watch(training, is_enough, LONGEST_S)
    elapsed_s = max((process.watched_s for process in watched), default=0.0)
    judge = Judge(training, watched, elapsed_s, source)
    judged = judge.judge()
    recorded = _read_recorded(training)
    since_s, is_bound = judged.since_s, True
    ages_s = [rank.age_s for rank in recorded.values() if rank.age_s is not None]
    if judged.verdict == "hung" and ages_s:
        since_s, is_bound = max(since_s or 0.0, min(ages_s)), False
    culprits = tuple(_with_steps(stand, recorded) for stand in judged.culprits)
    stands = tuple(_with_steps(judge.stand(process), recorded) for process in judge.ranks)
    difference = None
    if judged.verdict == "hung" and training.world_size > 1:
        difference = find_difference(collect_dumps(training.ranks))
    if difference is not None and all(stand.wait == COLLECTIVE for stand in culprits):
        culprits = tuple(stand for stand in stands if stand.rank in difference[1]) or culprits
    limits = [
        f"process {process.pid}: its Python calls could not be read: {process.member.unreadable}"
        for process in judge.ranks
        if process.member.unreadable is not None and not process.is_gone
    ]
    return AttachReport(
        tool_version=__version__,
        pid=training.members[0].pid,
        command=" ".join(redact_command(training.members[0].process.command)),
        verdict=judged.verdict,
        reason=judged.reason if difference is None else f"{judged.reason}; {difference[0]}",
        since_s=None if since_s is None else round(since_s, 1),
        since_is_bound=is_bound,
        culprits=culprits,
        ranks=stands,
        waits_for=judged.waits_for,
        phase=judged.phase,
        collective=None if difference is None else difference[0],
        findings=judged.findings,
        advice=judged.advice,
        limits=tuple(limits),
        watched_s=round(elapsed_s, 2),
        samples_count=max((len(process.looks) for process in judge.ranks), default=0),
    )


def _read_recorded(training: RunningTraining) -> dict[int, LiveRank]:
    """The agent's records of the ranks, by process; none without an agent."""
    runs = [LiveReader(folder).read() for folder in _run_folders(training)]
    return {rank.pid: rank for run in runs for rank in run.ranks if rank.host == platform.node()}


def _with_steps(stand: Stand, recorded: dict[int, LiveRank]) -> Stand:
    rank = recorded.get(stand.pid or 0)
    return stand if rank is None else replace(stand, steps_count=rank.steps_count)


def _run_folders(training: RunningTraining) -> set[Path]:
    folders = set()
    for member in training.ranks:
        try:
            folders.add(json.loads(member.environment.get(ATTACH_VARIABLE, "{}")).get("run"))
        except (ValueError, AttributeError):
            continue
    return {Path(folder) for folder in folders if folder}
