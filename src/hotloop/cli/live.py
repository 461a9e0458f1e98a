"""A run that trains -> what ``hotloop run --live`` shows on standard error: a block on a terminal, else lines.

The training keeps its own standard streams. On a terminal the block takes the last rows, which are taken out of the
part that scrolls (DECSTBM); what the training writes scrolls above it, whatever it is. Each drawing is one write that
leaves the cursor where the training had it. A helper puts the terminal right again should this process be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from hotloop.core.live import STALE, STALLED, LiveRank, LiveRun
from hotloop.core.phases import PHASES
from hotloop.core.plain import to_ascii

EVERY_S = 1.0
LINE_EVERY_S = 20.0
MOST_OF_TIME = 0.05
"""Reading takes at most this share of the time: with thousands of ranks the view changes less often."""
RECENT_S = 10.0
"""The use of the cores is told over so long."""
ROWS = 4
"""Of the block; so many others must be left."""

_CURSOR_KEPT = "\x1b7{}\x1b8"
_RELEASE = "\x1b7\x1b[r\x1b8\x1bD\x1b[2K\x1b[J\x1b[A"
"""All rows scroll again, and those below the cursor's are empty."""
_GUARD = r"read -r done || printf '\0337\033[r\0338\033D\033[2K\033[J\033[A'"
"""Does what _RELEASE says when its standard input ends without a line."""
SILENT_S = 3.0
"""The time since the last step is told from here on, and from three steps on."""
SMALLEST_RATIO = 0.005
"""Phases with a smaller share are left out."""
_GAP = "  "
_BAR_CELLS = 0.12
"""Width of a bar of the whole step, of the terminal's."""
_COLORS = dict(zip(PHASES, ("33", "36", "32", "34", "35", "31", "37", "96", "90"), strict=True))


@dataclass(frozen=True, slots=True)
class Style:
    """What a terminal shows."""

    has_color: bool
    has_unicode: bool
    encoding: str = "utf-8"

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.has_color and text else text


class LiveView:
    """Follows the run from a thread of its own, which nobody waits for: ``start`` once, from the main thread, then
    ``stop``. ``read`` answers the run as it is now; it is made in the thread, because what it imports would delay the
    training. ``recent_cores``: the share of the cores' time that the training used of late.
    """

    def __init__(
        self,
        make_read: Callable[[], Callable[[], LiveRun]],
        stream: TextIO,
        recent_cores: Callable[[], float | None] = lambda: None,
        *,
        line_every_s: float = LINE_EVERY_S,
    ) -> None:
        self._make_read = make_read
        self._stream = stream
        self._recent_cores = recent_cores
        self._line_every_s = line_every_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._block: _Block | None = None

    def start(self) -> None:
        """Once; later calls do nothing."""
        if self._thread is None:
            if _can_keep_rows(self._stream):
                self._block = _Block(self._stream.fileno(), _choose_style(self._stream))
                self._block.watch_stops()
            self._thread = threading.Thread(target=self._run, name="hotloop-live", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Leaves the terminal as it was, with the cursor where the training had it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=EVERY_S)
        if self._block is not None:
            self._block.close()

    def _run(self) -> None:
        read = self._make_read()
        every_s = EVERY_S if self._block is not None else self._line_every_s
        wait_s = 0.0 if self._block is not None else every_s
        while not self._over.wait(wait_s):
            before_s = time.monotonic()
            run = read()
            took_s = time.monotonic() - before_s
            try:
                self._show(run)
            except (OSError, ValueError):
                return  # the terminal is gone, or the stream is closed
            wait_s = max(every_s - took_s, took_s / MOST_OF_TIME)

    def _show(self, run: LiveRun) -> None:
        if self._block is not None:
            self._block.draw(run, self._recent_cores())
        elif run.lead is not None:
            self._stream.write(f"hotloop: {draw_line(run, self._recent_cores())}\n")
            self._stream.flush()


class _Block:
    """The last ROWS rows of a terminal. Nothing is drawn while the command is in the background, or too few rows are
    there."""

    def __init__(self, descriptor: int, style: Style) -> None:
        self._descriptor = descriptor
        self._style = style
        self._size: os.terminal_size | None = None  # for which the rows were taken; None: they are not
        self._guard: subprocess.Popen[bytes] | None = None
        self._is_closed = self._is_stopped = False
        self._lock = threading.Lock()

    def watch_stops(self) -> None:
        """Ctrl-Z gives the terminal to the shell, whole. Call it from the main thread."""
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True
        self._release()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._is_stopped = False

    def draw(self, run: LiveRun, cores_ratio: float | None) -> None:
        size = os.get_terminal_size(self._descriptor)
        with self._lock:
            if self._is_closed or self._is_stopped or not _is_in_foreground(self._descriptor):
                return
            text = "" if size == self._size else self._take_rows(size)
            if self._size is None:
                self._write(text)
                return
            lines = draw_block(run, cores_ratio, self._style, size.columns - 1)
            rows = "".join(
                f"\x1b[{size.lines - ROWS + number};1H\x1b[0m\x1b[2K{line}" for number, line in enumerate(lines, 1)
            )
            self._write(text + _CURSOR_KEPT.format("\x1b(B" + rows))

    def _take_rows(self, size: os.terminal_size) -> str:
        text = "" if self._size is None else _RELEASE
        self._size = size if size.lines >= 2 * ROWS and size.columns > 1 and self._have_guard() else None
        if self._size is None:
            return text
        top = _CURSOR_KEPT.format(f"\x1b[1;{size.lines - ROWS}r")
        return (
            text + "\x1bD" * ROWS + f"\x1b[{ROWS}A" + top
        )  # ROWS empty rows below the cursor, by scrolling if need be

    def _have_guard(self) -> bool:
        """Whether the helper runs that is left when this process is killed; it is of a session of its own."""
        if self._guard is None:
            try:
                self._guard = subprocess.Popen(
                    ["/bin/sh", "-c", _GUARD],
                    stdin=subprocess.PIPE,
                    stdout=self._descriptor,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                return False
        return True

    def _release(self) -> None:
        has_lock = self._lock.acquire(
            timeout=EVERY_S
        )  # whoever holds it longer waits for a terminal that takes nothing
        try:
            if self._size is not None and has_lock:
                self._size = None
                self._write(_RELEASE)
        except OSError:
            return  # the terminal is gone
        finally:
            if has_lock:
                self._lock.release()

    def close(self) -> None:
        self._is_closed = True
        self._release()
        if signal.getsignal(signal.SIGTSTP) == self._stop:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        if self._guard is not None and self._size is None:
            self._guard.communicate(b"\n")
            self._guard = None

    def _write(self, text: str) -> None:
        data = text.encode(self._style.encoding, "replace")
        while data:
            data = data[os.write(self._descriptor, data) :]


def _is_in_foreground(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not the terminal that controls us: nobody can put us into its background


def _can_keep_rows(stream: TextIO) -> bool:
    """Whether it is a terminal whose scrolling can be kept to some of its rows."""
    if not stream.isatty():
        return False
    try:
        import curses

        curses.setupterm(fd=stream.fileno())
        return all(curses.tigetstr(name) for name in ("csr", "sc", "rc", "ind"))
    except (ImportError, OSError, ValueError):
        return False
    except curses.error:  # no TERM, or one that nobody knows
        return False


def _choose_style(stream: TextIO) -> Style:
    encoding = (stream.encoding or "ascii").lower()
    return Style(
        has_color=not os.environ.get("NO_COLOR"),
        has_unicode=encoding.replace("-", "").startswith("utf"),
        encoding=encoding,
    )


def follow_live(folder: Path) -> Callable[[], LiveRun]:
    """Reads the run in ``folder`` again each time."""
    from hotloop.pipeline.live import LiveReader

    return LiveReader(folder).read


def draw_block(run: LiveRun, cores_ratio: float | None, style: Style, width: int) -> Sequence[str]:
    """Four rows of at most ``width`` columns: what the figures are of, or how old they are; progress; phases; the other
    figures. What does not fit is left out, from the end."""
    from rich.cells import cell_len

    age = _describe_age(run)
    basis = "" if run.lead is None else f"means of the last {run.lead.window_count:,} steps"
    head = _join([f"{'──' if style.has_unicode else '--'} hotloop", age or basis], width, style)
    room = width - cell_len(head) - 1
    rule = " " + style.paint(("─" if style.has_unicode else "-") * room, "2") if room > 0 else ""
    top = style.paint(head, "33" if age else "2") + rule
    if run.lead is None:
        return (top, "waiting for the first step"[:width], "", "")
    rest = [*_describe_use(run, cores_ratio), *_describe_ranks(run)]
    return (
        top,
        _join(_describe_progress(run), width, style),
        _draw_phases(run.lead, style, width),
        _join(rest, width, style),
    )


def draw_line(run: LiveRun, cores_ratio: float | None) -> str:
    """The same in one line."""
    lead = run.lead
    shares = [] if lead is None else [f"{name} {lead.share_ratio(name):.0%}" for name in _largest(lead)[:3]]
    parts = [_describe_age(run), *_describe_progress(run), ", ".join(shares)]
    parts += [*_describe_use(run, cores_ratio), *_describe_ranks(run)]
    return to_ascii("; ".join(part for part in parts if part))


def _describe_age(run: LiveRun) -> str:
    lead = run.lead
    if run.age_s is None or lead is None:
        return ""
    if run.state in (STALE, STALLED):
        return f"stale for {run.age_s:,.0f} s"
    return f"last step {run.age_s:,.0f} s ago" if run.age_s > max(SILENT_S, 3e-9 * (lead.step_mean_ns or 0)) else ""


def _describe_progress(run: LiveRun) -> list[str]:
    from hotloop.report.text import format_count, format_duration, format_percent
    from hotloop.serve.live import describe_rate

    lead = run.lead
    if lead is None:
        return []
    steps = f"{format_count(lead.steps_count)} steps"
    if run.steps_total is not None:
        steps = f"{format_count(lead.steps_count)} of {format_count(run.steps_total)} steps"
        steps += f" ({format_percent(run.progress_ratio)})"
    left = "" if run.eta_s is None else f"{format_duration(run.eta_s * 1e9)} left at this pace"
    rate, remark = describe_rate(run)
    return [steps, left, rate + (f" ({remark})" if remark else ""), f"{format_duration(lead.step_mean_ns)} a step"]


def _describe_use(run: LiveRun, cores_ratio: float | None) -> list[str]:
    from hotloop.report.text import format_bytes, format_number, format_percent, shorten

    lead = run.lead
    if lead is None:
        return []
    use = f"CPU {format_percent(cores_ratio)}" if cores_ratio is not None else ""
    if lead.utilization_ratio is not None:
        use = f"GPU {format_percent(lead.utilization_ratio)}"
    of = (
        f" of {format_bytes(lead.device_total_bytes)}"
        if lead.device_allocated_bytes and lead.device_total_bytes
        else ""
    )
    memory = "" if lead.memory_bytes is None else f"memory {format_bytes(lead.memory_bytes)}{of}"
    logged = [f"{shorten(name, 20)} {format_number(value)}" for name, value in list(lead.metrics.items())[:3]]
    return [use, *logged, memory]


def _describe_ranks(run: LiveRun) -> list[str]:
    from hotloop.report.text import format_duration

    timed = [(rank.step_mean_ns, rank.rank) for rank in run.ranks if rank.step_mean_ns is not None]
    if len(timed) < 2:
        return []
    step_ns, slowest = max(timed, key=lambda item: item[0])
    return [f"slowest rank {slowest}: {format_duration(step_ns)} a step"] if slowest is not None else []


def _largest(lead: LiveRank) -> list[str]:
    """The phases that are worth a word, largest first."""
    known = {name: lead.share_ratio(name) or 0.0 for name in PHASES}
    return sorted((name for name in PHASES if known[name] >= SMALLEST_RATIO), key=lambda name: -known[name])


def _draw_phases(lead: LiveRank, style: Style, width: int) -> str:
    """The largest phases that fit, in the order of the report, each with a bar."""
    cells = max(6, round(_BAR_CELLS * width))
    drawn: dict[str, tuple[str, str]] = {}
    room = width
    for name in _largest(lead):
        ratio = lead.share_ratio(name) or 0.0
        bar = ("█" if style.has_unicode else "#") * max(1, round(ratio * cells))
        text = f"{name} {ratio:.0%}"
        needed = len(text) + 1 + len(bar) + len(_GAP)
        if needed - len(_GAP) > room:
            break
        drawn[name], room = (text, bar), room - needed
    return _GAP.join(
        f"{text} {style.paint(bar, _COLORS[name])}" for name in PHASES if name in drawn for text, bar in [drawn[name]]
    )


def _join(parts: Iterable[str], width: int, style: Style) -> str:
    """As many of the parts as fit, at least the beginning of the first."""
    from rich.cells import cell_len, set_cell_size

    line = ""
    for part in filter(None, parts):
        text = part if style.has_unicode else to_ascii(part)
        longer = f"{line}{_GAP}{text}" if line else text
        if cell_len(longer) > width:
            return line or set_cell_size(text, width)
        line = longer
    return line
