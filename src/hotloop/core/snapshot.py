"""AttachReport: what a running training does now, or where it is stuck; the contract hotloop.attach/1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ATTACH_SCHEMA = "hotloop.attach/1"
"""Version of the contract. Fields are added, never changed."""

STALLS_FOLDER, ASKED, ANSWER, STALLED_FILE = "stalls", "asked", "answer", "stalled"
"""In a run folder: whoever finds the file ``asked`` there, and watches ranks of the run, leaves a response; ``stalled``
is there while the ranks are hung."""
Verdict = Literal["hung", "slow", "healthy", "starting", "saving", "compiling", "cannot tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a rank, or a process that it waits for, was in most of the samples.

    ``wait`` is the kind of wait, "computing" or "gone"; ``wait_detail`` names its object: the collective, the file, the
    address. ``idle_s`` is the time since the thread ran last, in seconds. ``stack`` is innermost first.
    """

    rank: int | None
    host: str
    pid: int | None
    role: str = "rank"
    file: str | None = None
    line: int | None = None
    function: str | None = None
    snippet: str | None = None
    wait: str = "computing"
    wait_detail: str | None = None
    idle_s: float | None = None
    cpu_ratio: float | None = None
    steps_count: int | None = None
    stack: tuple[str, ...] = ()


_WAITS = {
    "lock": "waits for a lock", "queue": "waits for a queue", "future": "waits for a future",
    "thread": "waits for a thread to end", "child process": "waits for a child process", "socket": "waits for a socket",
    "pipe": "waits for a pipe", "FIFO": "waits for the other end of a FIFO", "stdin": "waits for standard input",
    "terminal": "waits for the terminal", "file": "waits for a file", "file lock": "waits for a file lock",
    "descriptors": "waits for descriptors", "event loop": "waits in its event loop", "sleep": "sleeps",
    "waiting loop": "stays in a loop that only waits", "loader workers": "waits for its loader workers",
    "native code": "waits in native code", "uninterruptible I/O": "waits for a device",
    "stopped by a signal": "was stopped by a signal", "gone": "is gone", "computing": "computes",
}  # fmt: skip


def say_wait(wait: str, detail: str | None) -> str:
    """A kind of wait, as a part of a sentence.

    >>> say_wait("FIFO", "/tmp/out"), say_wait("collective", "barrier")
    ('waits for the other end of a FIFO (/tmp/out)', 'waits in barrier')
    """
    if wait == "collective":
        return f"waits in {detail or 'a collective'}"
    return _WAITS.get(wait, f"waits for {wait}") + (f" ({detail})" if detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPlace:
    """A share of the ranks' samples that is spent in one place, ``phase`` as in a step."""

    phase: str
    share_ratio: float
    rank: int | None
    file: str | None
    line: int | None
    function: str | None
    wait: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachReport:
    """``pid`` and ``command`` are the launcher's, or the training's own. ``since_s``: seconds without any progress; a
    lower bound if ``since_is_bound``. ``culprits`` are the ranks or processes that differ; empty if none does.
    ``collective`` is the collective in which ranks differ, by dumps of torch's flight recorder; None without dumps."""

    tool_version: str
    pid: int
    command: str
    verdict: Verdict
    reason: str
    since_s: float | None = None
    since_is_bound: bool = True
    culprits: tuple[Stand, ...] = ()
    ranks: tuple[Stand, ...] = ()
    waits_for: str | None = None
    phase: str | None = None
    collective: str | None = None
    findings: tuple[SlowPlace, ...] = ()
    advice: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    watched_s: float = 0.0
    samples_count: int = 0
