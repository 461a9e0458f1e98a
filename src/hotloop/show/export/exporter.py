"""Exporter: snapshots -> one target, in a thread of its own that nobody ever waits for longer than agreed."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hotloop.core.frames import decode_object
from hotloop.core.report import Health

from .points import Snapshot
from .target import Sender, SendFailed

NAME = "exports.json"
"""The fate of the exported points, from the end of a run to its report (docs/formats.md)."""
SCHEMA = "hotloop.exports/1"
_MOST_BYTES = 1 << 20
Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The fate of the points of one target. ``reason`` is that of the last failure, None without one."""

    target: str
    sent_count: Count
    lost_count: Count
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exports:
    """The content of the file."""

    targets: tuple[Exported, ...]


class Exporter:
    """``offer`` never blocks; ``stop`` blocks for at most the time it is given. Everything else is the thread's.

    The newest snapshot waits for its turn; one before it that was not sent by then is lost.
    """

    def __init__(
        self,
        name: str,
        sender: Sender,
    ) -> None:
        self._name = name
        self._sender = sender
        self._waiting: queue.Queue[Snapshot | None] = queue.Queue(maxsize=1)
        self._offered_count = self._sent_count = 0
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"hotloop-export-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close a sender that was never started."""
        self._sender.close()

    def offer(self, snapshot: Snapshot) -> None:
        self._offered_count += len(snapshot.points)
        with contextlib.suppress(queue.Empty):
            self._waiting.get_nowait()
        self._waiting.put_nowait(snapshot)

    def stop(self, within_s: float) -> Exported:
        """Send what waits, within the time; the rest is lost."""
        until_s = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=max(0.0, within_s))
        self._thread.join(timeout=max(0.0, until_s - time.monotonic()))
        lost_count = self._offered_count - self._sent_count
        reason = self._reason or ("the target is slower than the snapshots" if lost_count else None)
        return Exported(target=self._name, sent_count=self._sent_count, lost_count=lost_count, reason=reason)

    def _run(self) -> None:
        while (snapshot := self._waiting.get()) is not None:
            try:
                self._sender.send(snapshot)
                self._sent_count += len(snapshot.points)
            except SendFailed as error:
                self._reason = str(error)
            except Exception as error:  # a bug in a target costs its points, and the report says so
                self._reason = f"a bug in hotloop: {type(error).__name__}"
        self._sender.close()


def exports_to_json(exported: Iterable[Exported]) -> str:
    return json.dumps({"schema": SCHEMA, "targets": [asdict(one) for one in exported]})


def describe_exports(folder: Path) -> tuple[Health, ...]:
    """One warning for each target that did not get every point; nothing where all went well or the file is invalid."""
    try:
        with (folder / NAME).open("rb") as file:
            exports = msgspec.convert(decode_object(file.read(_MOST_BYTES)), _Exports)
    except (OSError, msgspec.ValidationError):
        return ()
    return tuple(
        Health(
            level="warning",
            message=f"export to {one.target[:40]}: {one.lost_count:,} of {one.sent_count + one.lost_count:,} points "
            f"were lost ({(one.reason or 'reason not known')[:200]})",
        )
        for one in exports.targets
        if one.lost_count
    )
