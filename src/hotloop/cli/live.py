"""A growing recording -> one line on stderr while the training runs: rate, shares, what it waits for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from hotloop.core.errors import HotloopError
from hotloop.core.recording import FIELD

EVERY_TICKS = 2
RECENT_S = 10.0
"""The line tells the device's use over so long."""
RECENT_BYTES = 1 << 18
"""As much as 64 devices write meanwhile."""
_LONGEST = 100


class LiveLine:
    """Called about once a second by the waiting parent; rewrites its line on a terminal, prints lines elsewhere."""

    def __init__(self, folder: Path, stream: TextIO, recent_cores: Callable[[], float | None] = lambda: None) -> None:
        """``recent_cores``: the share of the cores' time that the training used of late."""
        self._folder = folder
        self._recent_cores = recent_cores
        self._stream = stream
        self._ticks = 0
        self._rows: dict[Path, Any] = {}
        self._backward_rows: Counter[Path] = Counter()
        self._is_terminal = stream.isatty()

    def __call__(self) -> None:
        self._ticks += 1
        if self._ticks % (EVERY_TICKS if self._is_terminal else 10 * EVERY_TICKS):
            return
        try:
            line = self._describe()
        except HotloopError as error:
            line = str(error)
        if line:
            line = f"hotloop: {line}"[:_LONGEST]
            self._stream.write(f"\r{line:{_LONGEST}}" if self._is_terminal else f"{line}\n")
            self._stream.flush()

    def _describe(self) -> str:
        """The rows since the last line of the process that records the lowest rank."""
        from hotloop.analyze.recent import count_backward_rows, describe_recent
        from hotloop.telemetry.devices import NAME, read_device_use
        from hotloop.trace.recording import read_tail

        paths = sorted((self._folder / "processes").glob("*.hlr"))
        if not paths:
            return ""
        path = paths[0]
        seen = self._rows.get(path, 0)
        rows = read_tail(path, seen)
        if not len(rows):
            return ""
        self._rows[path] = int(rows[-1, FIELD["index"]] + rows[-1, FIELD["rows_merged"]])
        self._backward_rows[path] += count_backward_rows(rows)
        line = describe_recent(rows, self._backward_rows[path])
        use = read_device_use(self._folder / NAME, (time.time() - RECENT_S, time.time()), RECENT_BYTES)
        if line and use is not None:
            return f"{line}; GPU {use.utilization_ratio:.0%}"
        cores = self._recent_cores()
        return f"{line}; CPU {cores:.0%}" if line and cores is not None else line
