"""Processes below this one -> why a Python among them does not know of the agent.

A shell script that sets PYTHONPATH, ``env -i`` or a launcher with an environment of its own keeps the agent out of the
Python that trains. The kernel shows with which variables each process was started. Only names of variables and the
attach folder are looked for; nothing else of an environment is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .child import ATTACH_VARIABLE, SITE, has_attach_file

MOST_LOOKS = 60
MOST_PROCESSES = 500
MOST_PROCESSES_READ = 3_000

REPLACED_PATH = (
    "probably because PYTHONPATH was replaced before {script} started (for example by a script): write "
    'PYTHONPATH="...:$PYTHONPATH" there, or install hotloop for that Python, or call hotloop.watch() in it'
)
REPLACED_ENVIRONMENT = (
    "probably because {script} was started without this environment (env -i, sudo or a custom launcher): pass "
    f"{ATTACH_VARIABLE} and PYTHONPATH on to it, or call hotloop.watch() in it"
)


class UnattachedWatch:
    """Looks about once a second while nothing is recorded. ``reason`` says in one line why, or None."""

    def __init__(self, processes_folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = processes_folder
        self._proc = proc
        self._looks = 0
        self._found: str | None = None
        self.apart: int | None = None
        """A process of hotloop's own, which is not to be attached."""

    @property
    def reason(self) -> str | None:
        return None if self._is_recorded() else self._found

    def tick(self) -> None:
        if self._looks >= MOST_LOOKS:
            return
        if self._is_recorded():
            self._looks = MOST_LOOKS
            return
        self._looks += 1
        own = _command_of(self._proc / str(os.getpid()))
        for pid in _descendants(self._proc, os.getpid()):
            # The newest process that says something is nearest to the training process.
            if pid != self.apart and _command_of(self._proc / str(pid)) != own:  # a fork of this one waits for signals
                self._found = why_unattached(self._proc / str(pid)) or self._found

    def _is_recorded(self) -> bool:
        try:
            return any(self._folder.iterdir())
        except OSError:
            return True  # the folder is gone: nothing can be said


def why_unattached(process: Path) -> str | None:
    """Why the Python of a folder of /proc is not attached; None for other programs, or where it should be."""
    try:
        if not os.path.basename(os.readlink(process / "exe")).startswith("python"):
            return None
        environment = (process / "environ").read_bytes().split(b"\0")
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to somebody else
        return None
    if not words[0]:  # a process that is just ending shows nothing
        return None
    values = dict(entry.partition(b"=")[::2] for entry in environment)
    script = _script_of(words)
    if ATTACH_VARIABLE.encode() not in values:
        return REPLACED_ENVIRONMENT.format(script=script)
    reads_folder = os.fsencode(SITE) in values.get(b"PYTHONPATH", b"").split(os.pathsep.encode())
    if not reads_folder and not has_attach_file(os.fsdecode(words[0]), os.fsdecode(values.get(b"PATH", b""))):
        return REPLACED_PATH.format(script=script)
    return None


def _command_of(process: Path) -> bytes | None:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return None


def _script_of(words: list[bytes]) -> str:
    """The name of the script or module that a command line of Python runs; never its arguments, nor code after -c."""
    takes_name = False
    for word in words[1:]:
        if takes_name or not word.startswith(b"-"):
            return os.path.basename(os.fsdecode(word))[:80] or "python"
        if word == b"-c":
            return "python -c"
        takes_name = word == b"-m"
    return "python"


def _descendants(proc: Path, pid: int) -> Iterator[int]:
    """The processes below one, parents first."""
    below = _children_by_parent(proc)
    waiting, count = [pid], 0
    while waiting and count < MOST_PROCESSES:
        for child in below.get(waiting.pop(0), ()):
            count += 1
            waiting.append(child)
            yield child


def _children_by_parent(proc: Path) -> dict[int, list[int]]:
    """Parent -> its children; empty on hosts with so many processes that reading them all would be felt."""
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return {}
    found: dict[int, list[int]] = {}
    for pid in pids if len(pids) <= MOST_PROCESSES_READ else ():
        try:
            # The name in brackets may hold anything; behind it stand the state and the parent.
            parent = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended
            continue
        found.setdefault(parent, []).append(pid)
    return found
