"""Exporter: snapshots -> one target, in a thread of its own that nobody ever waits for longer than agreed."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from hotloop.core.frames import decode_object
from hotloop.core.report import Health

from .points import Snapshot
from .target import Sender, SendFailed

MOST_WAITING = 64
"""Snapshots; of more, the oldest are given up."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Between two attempts after a failure, doubled each time."""
NAME = "exports.json"
"""What became of the exported points, from the end of a run to its report (docs/formats.md)."""
SCHEMA = "hotloop.exports/1"
_MOST_BYTES = 1 << 20
_MOST_TARGETS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What became of the points of one target. ``reason`` is that of the last failure, None without one."""

    target: str
    sent_count: int
    lost_count: int
    reason: str | None


class Exporter:
    """``offer`` never blocks; ``stop`` blocks for at most the time it is given. Everything else is the thread's.

    ``interval_s`` is how often this target wants a snapshot; None: as often as the others.
    """

    def __init__(
        self,
        name: str,
        sender: Sender,
        *,
        interval_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self._offered_s = float("-inf")
        self._name = name
        self._sender = sender
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Snapshot] = deque()
        self._is_stopping = False
        self._sent_count = self._lost_count = 0
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"hotloop-export-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Of one that was never started."""
        self._sender.close()

    def is_due(self, usual_s: float) -> bool:
        """Whether the target's interval, or else the usual one, is over since the last offer, to a tenth of it."""
        return self._clock() - self._offered_s >= 0.9 * (self.interval_s or usual_s)

    def offer(self, snapshot: Snapshot) -> None:
        self._offered_s = self._clock()
        with self._changed:
            self._waiting.append(snapshot)
            if len(self._waiting) > MOST_WAITING:
                self._lose(self._waiting.popleft(), "the target is slower than the snapshots")
            self._changed.notify()

    def stop(self, within_s: float) -> Exported:
        """Send what waits, as far as that goes within the time; the rest is lost."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=max(0.0, within_s))
        with self._changed:
            while self._waiting:
                self._lose(self._waiting.popleft(), "the run ended before they were sent")
            return Exported(
                target=self._name, sent_count=self._sent_count, lost_count=self._lost_count, reason=self._reason
            )

    def _lose(self, snapshot: Snapshot, reason: str) -> None:
        self._lost_count += len(snapshot.points)
        self._reason = self._reason or reason

    def _run(self) -> None:
        wait_s = 0.0
        while (snapshot := self._next(wait_s)) is not None:
            wait_s = self._send(snapshot, wait_s)
        self._sender.close()

    def _next(self, wait_s: float) -> Snapshot | None:
        """The oldest snapshot, after ``wait_s``; None when there is nothing left to do."""
        until_s = self._clock() + wait_s
        with self._changed:
            while not self._is_stopping and (not self._waiting or self._clock() < until_s):
                self._changed.wait(max(0.0, until_s - self._clock()) if self._waiting else None)
            return self._waiting[0] if self._waiting else None

    def _send(self, snapshot: Snapshot, waited_s: float) -> float:
        """How long to wait before the next attempt. A snapshot that may be sent again stays where it is."""
        failure: SendFailed | None = None
        try:
            self._sender.send(snapshot)
        except SendFailed as error:
            failure = error
        except Exception as error:  # a bug in a target costs its points, and the report says so
            failure = SendFailed(f"a bug in hotloop: {type(error).__name__}", may_retry=False)
        with self._changed:
            is_first = bool(self._waiting) and self._waiting[0] is snapshot  # else it was given up meanwhile
            if failure is None:
                if is_first:
                    self._waiting.popleft()
                    self._sent_count += len(snapshot.points)
                return 0.0
            self._reason = str(failure)
            if is_first and not failure.may_retry:
                self._lose(self._waiting.popleft(), str(failure))
            while self._is_stopping and failure.may_retry and self._waiting:  # the others would fail as this one did
                self._lose(self._waiting.popleft(), str(failure))
            return min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2 * waited_s))


def exports_to_json(exported: Iterable[Exported]) -> str:
    return json.dumps({"schema": SCHEMA, "targets": [asdict(one) for one in exported]})


def describe_exports(folder: Path) -> tuple[Health, ...]:
    """One warning for each target that did not get every point; nothing where all went well or the file is no such."""
    try:
        with (folder / NAME).open("rb") as file:
            content = decode_object(file.read(_MOST_BYTES)) or {}
    except OSError:
        return ()
    targets = content.get("targets")
    lines = []
    for one in targets[:_MOST_TARGETS] if isinstance(targets, list) else ():
        if not isinstance(one, dict):
            continue
        sent, lost = one.get("sent_count"), one.get("lost_count")
        if type(sent) is not int or type(lost) is not int or sent < 0 or lost <= 0:
            continue
        name, reason = str(one.get("target"))[:40], str(one.get("reason") or "reason not known")[:200]
        lines.append(f"export to {name}: {lost:,} of {sent + lost:,} points were lost ({reason})")
    return tuple(Health(level="warning", message=line) for line in lines)
