"""Reports and comparisons of recorded runs -> their pages, drawn by `hotloop report` and `hotloop diff` in a child.

A child at a time, of low priority: its memory goes back to the system, a recording that cannot be read ends it and not
the server, and a training on the same machine keeps its cores.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from hotloop.core.errors import RecordingError

MOST_PAGES = 16
"""Drawn pages that are kept in memory."""
MOST_BYTES = 32 << 20
PATIENCE_S = 300.0
NICENESS = 10


class DrawnPages:
    """Pages by the words of the command that draws them; drawn once for each stamp of what they show."""

    def __init__(self) -> None:
        self._drawing = threading.Lock()
        self._pages: OrderedDict[tuple[str, ...], tuple[Hashable, bytes]] = OrderedDict()
        self._child: subprocess.Popen[bytes] | None = None
        self._over = False

    def draw(self, words: Sequence[str], stamp: Hashable) -> bytes:
        """The page that ``hotloop WORDS`` writes to standard output.

        Raises RecordingError with its last line where it writes none.
        """
        key = tuple(words)
        with self._drawing:
            held = self._pages.get(key)
            if held is None or held[0] != stamp:
                held = stamp, self._run(key)
            self._pages[key] = held
            self._pages.move_to_end(key)
            while len(self._pages) > MOST_PAGES:
                self._pages.popitem(last=False)
            return held[1]

    def stop(self) -> None:
        """End the child that draws, if one does; nothing is drawn any more."""
        self._over = True
        child = self._child
        if child is not None:
            child.kill()

    def _run(self, words: tuple[str, ...]) -> bytes:
        if self._over:
            raise RecordingError("the server is stopping")
        self._child = child = subprocess.Popen(
            [sys.executable, "-m", "hotloop", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
            start_new_session=True,
        )
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
        try:
            page, complaints = child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise RecordingError(f"it took longer than {PATIENCE_S:.0f} s") from None
        finally:
            child.kill()
            child.wait()
            self._child = None
        if child.returncode != 0:
            lines = complaints.decode("utf-8", "replace").strip().splitlines()
            raise RecordingError(lines[-1][:400] if lines else f"hotloop {words[0]} ended with {child.returncode}")
        if len(page) > MOST_BYTES:
            raise RecordingError(f"its page has {len(page):,} bytes, more than a browser should load")
        return page
