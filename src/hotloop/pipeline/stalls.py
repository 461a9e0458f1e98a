"""A run that stops moving -> a line on standard error, a snapshot of its ranks in the run folder, a line in the report.

Whoever may not read the training's processes asks for a snapshot here: `hotloop run` is their parent, and may.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hotloop.agent.replay.collector import TrainingProgress
from hotloop.core.decode import encode_contract
from hotloop.core.output_file import write_whole
from hotloop.core.report import Health
from hotloop.core.snapshot import ANSWER, ASKED, ATTACH_SCHEMA, STALLED_FILE, STALLS_FOLDER
from hotloop.evidence.snapshot import proc

STALL_S = 60.0
STALL_STEPS = 10
"""No progress for this many of the longest usual steps, and for STALL_S, is a stall."""
CPU_EVERY_S = 5.0
BUSY_RATIO = 0.05
"""Share of a core: processes that use more do something, even if no hook sees it."""


class StallWatch:
    """``tick`` about once a second, from any thread; it takes microseconds, and never waits for a snapshot."""

    def __init__(
        self,
        folder: Path,
        read_progress: Callable[[], TrainingProgress],
        emit: Callable[[str], None],
        *,
        limit_s: float = STALL_S,
        ends_run: bool = False,
    ) -> None:
        self._folder = folder / STALLS_FOLDER
        self._read_progress = read_progress
        self._emit = emit
        self._limit_s = limit_s
        self._ends_run = ends_run
        self._last: TrainingProgress | None = None
        self._cpu_s = 0.0
        self._moved_s = self._next_cpu_s = time.monotonic()
        self._looking: threading.Thread | None = None
        self._count = 0
        self._is_stalled = self._is_over = False

    def tick(self) -> None:
        if self._is_over:
            return
        try:
            self._watch()
        except Exception as error:  # the training's exit code must reach the shell, whatever fails here
            self._is_over = True
            self._emit(f"stalls are no longer watched: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        progress, now_s = self._read_progress(), time.monotonic()
        if not progress.pids:
            return
        if (self._folder / ASKED).exists():
            self._look(progress, is_asked=True)
        if self._last is None or progress.events_count != self._last.events_count or self._is_busy(progress, now_s):
            self._last, self._moved_s = progress, now_s
            if self._is_stalled:
                self._is_stalled = False
                (self._folder / STALLED_FILE).unlink(missing_ok=True)
                self._emit("training is making progress again")
        elif self._limit_s and not self._is_stalled and now_s - self._moved_s >= self._longest_s(progress):
            self._look(progress, is_asked=False)

    def _longest_s(self, progress: TrainingProgress) -> float:
        return max(self._limit_s, STALL_STEPS * progress.step_ns * 1e-9)

    def _is_busy(self, progress: TrainingProgress, now_s: float) -> bool:
        """Whether the ranks and what they started use the processor: a long step, a compiler, a validation."""
        if now_s < self._next_cpu_s or now_s - self._moved_s < min(CPU_EVERY_S, self._limit_s / 2):
            return False
        self._next_cpu_s = now_s + CPU_EVERY_S
        processes = proc.list_processes()
        family = {pid for rank in progress.pids for pid in (rank, *proc.descendants(rank, processes))}
        cpu_s = sum(proc.read_cpu_s(pid) for pid in family)
        before_s, self._cpu_s = self._cpu_s, cpu_s
        return cpu_s - before_s > BUSY_RATIO * CPU_EVERY_S

    def _look(self, progress: TrainingProgress, *, is_asked: bool) -> None:
        if self._looking is not None and self._looking.is_alive():
            return
        self._looking = threading.Thread(
            target=self._snapshot, args=(progress.pids[0], is_asked), name="hotloop-snapshot", daemon=True
        )
        self._looking.start()

    def _snapshot(self, pid: int, is_asked: bool) -> None:
        from .attach import attach

        try:
            report = attach(str(pid), ask=False)[0]
            self._folder.mkdir(exist_ok=True)
            text = json.dumps(encode_contract(ATTACH_SCHEMA, report))
            if is_asked:
                (self._folder / ASKED).unlink(missing_ok=True)
                write_whole(self._folder / f"{ANSWER}-{platform.node()}.json", text)
                return
            if report.verdict != "hung":
                self._moved_s = time.monotonic()
                return
            self._is_stalled = True
            self._count += 1
            write_whole(self._folder / f"{platform.node()}-{self._count}.json", text)
            (self._folder / STALLED_FILE).touch()
        except Exception as error:  # in a thread of its own: said in a line, and looked at again later
            self._moved_s = time.monotonic()
            self._emit(f"training may have stalled; the processes could not be examined: {error}")
            return
        self._emit(f"no progress for {report.since_s or 0.0:,.0f} s: {report.reason}; details: hotloop attach {pid}")
        if self._ends_run:
            self._emit("--stall-exit: asking the training process to end")
            os.kill(os.getpid(), signal.SIGTERM)  # passed on to it


def describe_stalls(folder: Path) -> tuple[Health, ...]:
    """A line for the report on each time that the run stalled."""
    lines = []
    for path in sorted((folder / STALLS_FOLDER).glob("*-*.json")):
        if path.name.startswith(ANSWER):
            continue
        try:
            content: Mapping[str, Any] = json.loads(path.read_text())
            text = f"training stalled for {float(content['since_s'] or 0):,.0f} s or more: {content['reason']}"
        except (OSError, ValueError, KeyError, TypeError):
            continue
        lines.append(Health(level="warning", message=text[:500]))
    return tuple(lines)
