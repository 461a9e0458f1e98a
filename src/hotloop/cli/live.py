"""A run in progress -> the lines that ``hotloop run --live`` writes to standard error with the training's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from hotloop.core.live import STALE, STALLED, LiveRank, LiveRun
from hotloop.core.phases import PHASES
from hotloop.core.plain import to_ascii
from hotloop.pipeline.live import LiveReader
from hotloop.show.report import text as t
from hotloop.show.serve.live import describe_rate

EVERY_S = 20.0
SOON_S = 5.0
"""Between two lines on a terminal, where somebody watches."""
MOST_OF_TIME = 0.05
"""Reading takes at most this share of the time: with thousands of ranks a line comes less often."""
RECENT_S = 10.0
"""Period that the use of the cores covers."""
SILENT_S = 3.0
"""The time since the last step is stated from here on, and from three steps on."""
SMALLEST_RATIO = 0.005
"""Phases with a smaller share are left out."""


def show_live(
    folder: Path,
    stream: TextIO,
    recent_cores: Callable[[], float | None],
    over: threading.Event,
    every_s: float | None = None,
) -> None:
    """A line now and then until ``over``. ``recent_cores``: the share of the cores' time that was used of late."""
    reader = LiveReader(folder)
    wait_s = every_s = every_s or (SOON_S if stream.isatty() else EVERY_S)
    while not over.wait(wait_s):
        before_s = time.monotonic()
        line = draw_line(reader.read(), recent_cores())
        took_s = time.monotonic() - before_s
        try:
            stream.write(f"hotloop: {line}\n" if line else "")
            stream.flush()
        except (OSError, ValueError):
            return  # the terminal is gone, or the stream is closed
        wait_s = max(every_s - took_s, took_s / MOST_OF_TIME)


def draw_line(run: LiveRun, cores_ratio: float | None) -> str:
    """How old the figures are, progress, the largest phases, use, ranks, in one line of ASCII; empty without a step."""
    lead = run.lead
    if lead is None:
        return ""
    phases = {name: lead.share_ratio(name) or 0.0 for name in PHASES}
    largest = sorted((name for name in PHASES if phases[name] >= SMALLEST_RATIO), key=lambda name: -phases[name])
    shares = ", ".join(f"{name} {phases[name]:.0%}" for name in largest[:3])
    parts = [_describe_age(run, lead), *_describe_progress(run, lead), shares, *_describe_use(lead, cores_ratio)]
    return to_ascii("; ".join(part for part in [*parts, _describe_slowest(run)] if part))


def _describe_age(run: LiveRun, lead: LiveRank) -> str:
    if run.age_s is None:
        return ""
    if run.state in (STALE, STALLED):
        return f"stale for {run.age_s:,.0f} s"
    return f"last step {run.age_s:,.0f} s ago" if run.age_s > max(SILENT_S, 3e-9 * (lead.step_mean_ns or 0)) else ""


def _describe_progress(run: LiveRun, lead: LiveRank) -> list[str]:
    steps = f"{t.format_count(lead.steps_count)} steps"
    if run.steps_total is not None:
        of = t.format_count(run.steps_total)
        steps = f"{t.format_count(lead.steps_count)} of {of} steps ({t.format_percent(run.progress_ratio)})"
    left = "" if run.eta_s is None else f"{t.format_duration(run.eta_s * 1e9)} left at the current rate"
    rate, remark = describe_rate(run)
    return [steps, left, rate + (f" ({remark})" if remark else ""), f"{t.format_duration(lead.step_mean_ns)} a step"]


def _describe_use(lead: LiveRank, cores_ratio: float | None) -> list[str]:
    use = f"CPU {t.format_percent(cores_ratio)}" if cores_ratio is not None else ""
    if lead.utilization_ratio is not None:
        use = f"GPU {t.format_percent(lead.utilization_ratio)}"
    on_device = lead.device_allocated_bytes and lead.device_total_bytes
    of = f" of {t.format_bytes(lead.device_total_bytes)}" if on_device else ""
    memory = "" if lead.memory_bytes is None else f"memory {t.format_bytes(lead.memory_bytes)}{of}"
    logged = [f"{t.shorten(name, 20)} {t.format_number(value)}" for name, value in list(lead.metrics.items())[:3]]
    return [use, *logged, memory]


def _describe_slowest(run: LiveRun) -> str:
    timed = [(rank.step_mean_ns, rank.rank) for rank in run.ranks if rank.step_mean_ns is not None]
    step_ns, slowest = max(timed, default=(0, None), key=lambda item: item[0])
    return (
        f"slowest rank {slowest}: {t.format_duration(step_ns)} a step" if len(timed) > 1 and slowest is not None else ""
    )
