"""A process's id, or none -> the trainings that it belongs to: which processes are ranks, and what the others are.

Launchers import torch too, and workers are copies of their rank; a process's own Python calls show what it is.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hotloop.agent.replay.stack_reader import PythonCall

from . import proc
from .interpreter import Interpreter, Layouts, UnreadableError
from .proc import Process

LAUNCHING = (
    "torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.run", "accelerate.commands",
    "deepspeed.launcher", "lightning.fabric.strategies.launchers", "hotloop.cli", "hotloop.agent.attach.child",
)  # fmt: skip
LAUNCHER_WORDS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "hotloop")
RANK, LAUNCHER, WORKER, CHILD = "rank", "launcher", "loader worker", "child"


@dataclass(slots=True, kw_only=True)
class Member:
    """A process of a training. If its calls cannot be read, ``reader`` is None, and ``unreadable`` the reason."""

    process: Process
    role: str
    rank: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    reader: Interpreter | None = None
    unreadable: str | None = None

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(slots=True, kw_only=True)
class RunningTraining:
    """``expected`` is how many ranks this host should have; None if nothing says so."""

    members: list[Member]
    world_size: int
    expected: int | None
    host: str = platform.node()

    @property
    def ranks(self) -> list[Member]:
        return [member for member in self.members if member.role == RANK]

    def children_of(self, member: Member) -> list[Member]:
        """All processes that this rank started, and those that these started."""
        family, pids = [], {member.pid}
        for other in self.members:
            if other.process.parent in pids and other.role != RANK:
                family.append(other)
                pids.add(other.pid)
        return family


def find_trainings(pid: int | None, layouts: Layouts) -> list[RunningTraining]:
    """The trainings of a process, its launcher and its descendants; without a process, all on this machine."""
    processes = proc.list_processes()
    if pid is None:
        seeds = [other for other in processes if proc.has_torch(other)]
    elif pid in processes and (proc.has_torch(pid) or _is_launcher(processes[pid])):
        seeds = [pid]
    else:
        below = proc.descendants(pid, processes)
        seeds = [other for other in below if proc.has_torch(other)] or [
            other for other in (pid, *below) if other in processes and _may_train(processes[other])
        ]
    roots = dict.fromkeys(_climb(seed, processes) for seed in seeds if seed in processes)
    inside = {child for root in roots for child in proc.descendants(root, processes)}
    groups: dict[tuple[str, ...], list[Process]] = {}
    for root in roots:
        if root not in inside:
            groups.setdefault(_meeting_of(root), []).append(processes[root])
    if pid is not None and seeds == [pid] and len(groups) == 1:  # its siblings may have no launcher in common
        (meeting,) = groups
        others = (process for process in processes.values() if process.pid not in inside | set(roots))
        groups[meeting] += [other for other in others if len(meeting) > 1 and _meeting_of(other.pid) == meeting]
    return [_describe(group, processes, layouts) for group in groups.values()]


def _is_launcher(process: Process) -> bool:
    return any(word in " ".join(process.command[:6]) for word in LAUNCHER_WORDS)


def _meeting_of(pid: int) -> tuple[str, ...]:
    """Where ranks that were started one by one meet; the process itself if it is not such a rank."""
    environment = proc.read_environment(pid)
    if environment.get("WORLD_SIZE", "1") == "1" or not proc.has_torch(pid):
        return (str(pid),)
    return tuple(environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))


def _climb(pid: int, processes: Mapping[int, Process]) -> int:
    """The launcher that started a rank, as far up as there is one."""
    top = pid
    while (parent := processes.get(processes[pid].parent)) is not None and parent.pid > 1:
        same = parent.command == processes[pid].command and len(parent.command) > 1
        spawned = "multiprocessing" in " ".join(processes[pid].command) or same
        if not (spawned or _is_launcher(parent)):
            break
        pid = top = parent.pid
    return top


def _describe(roots: Sequence[Process], processes: Mapping[int, Process], layouts: Layouts) -> RunningTraining:
    members = []
    for pid in dict.fromkeys(pid for root in roots for pid in (root.pid, *proc.descendants(root.pid, processes))):
        process = processes[pid]
        member = Member(process=process, role=CHILD, environment=proc.read_environment(pid))
        calls: tuple[PythonCall, ...] = ()
        try:
            member.reader = Interpreter(pid, layouts)
            calls = member.reader.read_threads().get(pid, ())
        except UnreadableError as error:
            member.unreadable = str(error)
        member.role = _role_of(process, calls, member)
        members.append(member)
    _make_spawned_ranks(members)
    _count_dead(members)
    ranks = sorted((m for m in members if m.role == RANK), key=lambda m: (m.process.started_ticks, m.pid))
    for order, member in enumerate(ranks):
        member.rank = _number(member.environment, "RANK")
        if member.rank is None and len(ranks) > 1:
            member.rank = order
    worlds = [_number(member.environment, "WORLD_SIZE") or 0 for member in ranks]
    expected = [_number(member.environment, "LOCAL_WORLD_SIZE") for member in ranks]
    return RunningTraining(
        members=members,
        world_size=max([len(ranks), *worlds]),
        expected=next((count for count in expected if count is not None), None),
    )


def _role_of(process: Process, calls: Sequence[PythonCall], member: Member) -> str:
    modules = [call.module for call in calls]
    if any(call.function == "_worker_loop" and call.module.startswith("torch.utils.data") for call in calls):
        return WORKER
    if any(
        module.startswith(("torch._inductor.compile_worker", "multiprocessing.resource_tracker")) for module in modules
    ):
        return CHILD
    if any(module.startswith(LAUNCHING) for module in modules):
        return LAUNCHER
    if not calls and any(word in " ".join(process.command[:4]) for word in LAUNCHER_WORDS):
        return LAUNCHER
    if any(call.module == "torch.multiprocessing.spawn" for call in calls):
        return RANK if any(call.function == "_wrap" for call in calls) else LAUNCHER
    return RANK if proc.has_torch(process.pid) or _may_train(process) else CHILD


def _may_train(process: Process) -> bool:
    """Whether it is somebody else's Python, about which nothing more can be seen."""
    return proc.has_torch(process.pid) is None and "python" in process.name


def _make_spawned_ranks(members: Sequence[Member]) -> None:
    """Below a rank, only children that the rank's parent waits for with ``join`` train: then the parent is a
    launcher."""
    by_pid = {member.pid: member for member in members}
    for member in members:
        parent = by_pid.get(member.process.parent)
        if member.role != RANK or parent is None or parent.role not in (RANK, LAUNCHER, WORKER):
            continue
        if parent.role == LAUNCHER:
            continue
        calls = parent.reader.read_threads().get(parent.pid, ()) if parent.reader is not None else ()
        joins = any(call.module.startswith("multiprocessing.process") and call.function == "join" for call in calls)
        waits = any(call.module == "subprocess" for call in calls) and parent.process.command != member.process.command
        if joins or waits:
            parent.role = LAUNCHER
        else:
            member.role = CHILD


def _count_dead(members: Sequence[Member]) -> None:
    """A dead Python process that its launcher has not noticed yet was a rank."""
    launchers = {member.pid for member in members if member.role == LAUNCHER}
    for member in members:
        state = proc.read_thread(member.pid, member.pid)
        is_dead = state is not None and state.state == "Z"
        if is_dead and member.process.parent in launchers and "python" in member.process.name:
            member.role = RANK


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None
