"""A run folder that is being written -> the targets of ``hotloop run --export``, from threads next to the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.core.errors import HotloopError, UsageError
from hotloop.show.export import TARGETS
from hotloop.show.export.exporter import Exported, Exporter
from hotloop.show.export.points import make_snapshot

if TYPE_CHECKING:
    from .live import LiveReader

INTERVAL_S = 5.0
FIRST_S = 1.0
MOST_OF_TIME = 0.02
"""Reading takes at most this share of the time: with many ranks the interval grows."""
END_S = 1.0
"""All that the end of a run waits for its exports, together."""


def open_targets(wishes: Sequence[str], variables: Mapping[str, str]) -> dict[str, Exporter]:
    """The targets of ``TARGET=WHERE``, opened, by name.

    Raises UsageError for a target that is not known, or cannot be opened; the others are closed then.
    """
    opened: dict[str, Exporter] = {}
    try:
        for wish in wishes:
            target, _, where = wish.partition("=")
            if target not in TARGETS:
                raise UsageError(f"--export {target}: no such target; known: {', '.join(TARGETS)}")
            name = target if target not in opened else f"{target} {len(opened) + 1}"
            opened[name] = Exporter(name, TARGETS[target].open(where, variables))
    except HotloopError:
        for exporter in opened.values():
            exporter.close()
        raise
    return opened


class RunExports:
    """Reads the run every INTERVAL_S and offers what it read to every target. Nothing here blocks the caller but
    ``stop``, and that for END_S at most."""

    def __init__(
        self,
        exporters: Mapping[str, Exporter],
        make_reader: Callable[[], LiveReader],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._exporters = tuple(exporters.values())
        self._make_reader = make_reader
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Once; later calls do nothing."""
        if self._thread is not None or not self._exporters:
            return
        for exporter in self._exporters:
            exporter.start()
        self._thread = threading.Thread(target=self._run, name="hotloop-exports", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[Exported, ...]:
        """Export the end of the run, wait for END_S at most, and say what became of all points."""
        until_s = time.monotonic() + END_S
        self.start()  # of a command that was over within the first second
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=END_S)
        return tuple(exporter.stop(until_s - time.monotonic()) for exporter in self._exporters)

    def _run(self) -> None:
        reader = self._make_reader()
        wait_s = min(FIRST_S, self._interval_s)
        while not self._over.wait(wait_s):
            wait_s = max(self._interval_s, self._offer(reader) / MOST_OF_TIME)
        self._offer(reader)

    def _offer(self, reader: LiveReader) -> float:
        """How many seconds it took."""
        before_s = time.monotonic()
        snapshot = make_snapshot(reader.read(), time.time())
        for exporter in self._exporters:
            exporter.offer(snapshot)
        return time.monotonic() - before_s


def follow_run(folder: Path) -> LiveReader:
    """The reader of a run's exports. It is made in their thread: what it imports would delay the training."""
    from .live import LiveReader

    return LiveReader(folder)
