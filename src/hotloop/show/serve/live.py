"""A run folder -> what its live page shows, as text that is ready to insert; read once a second at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.core.errors import HotloopError
from hotloop.core.live import LiveRank, LiveRun
from hotloop.core.phases import PHASES
from hotloop.show.report.text import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_rate,
    format_share,
    shorten,
)

from .listing import LiveFolder, RunEntry, State, stamp_files

AGE_S = 0.9
"""One reading serves all requests within this time."""
MOST_FEEDS = 8
"""Runs whose readers are kept."""
MOST_RANKS = 16
MOST_METRICS = 6

Content = dict[str, Any]


class LiveFeeds:
    """The newest state of each run that somebody looks at; all who look share one reader."""

    def __init__(self, make_reader: Callable[[Path], LiveFolder], clock: Callable[[], float] = time.monotonic) -> None:
        self._make_reader = make_reader
        self._clock = clock
        self._feeds: dict[str, _Feed] = {}
        self._lock = threading.Lock()

    def read(self, folder: Path, entry: RunEntry) -> Content:
        """The current content of this run's page."""
        with self._lock:
            feed = self._feeds.pop(entry.name, None) or _Feed(self._make_reader(folder))
            self._feeds[entry.name] = feed
            while len(self._feeds) > MOST_FEEDS:
                del self._feeds[next(iter(self._feeds))]
        with feed.lock:
            now_s = self._clock()
            if feed.content is None or now_s - feed.read_s >= AGE_S or not entry.state.is_live:
                feed.read_s = now_s
                try:
                    stamp_files(folder)  # refuses a link
                    feed.content = describe_live(feed.reader.read())
                except (HotloopError, OSError) as error:
                    feed.content = {**(feed.content or describe_nothing()), "problem": shorten(str(error), 300)}
            return {**feed.content, **describe_state(entry)}


class _Feed:
    def __init__(self, reader: LiveFolder) -> None:
        self.reader = reader
        self.lock = threading.Lock()
        self.content: Content | None = None
        self.read_s = 0.0


def describe_state(entry: RunEntry) -> Content:
    """The line that says whether what is shown below it is new."""
    text = entry.state.value + (f": {entry.detail}" if entry.detail else "")
    return {"state": text, "tone": STATE_TONE[entry.state], "is_over": not entry.state.is_live}


STATE_TONE = {
    State.STARTING: "info",
    State.RUNNING: "good",
    State.STALE: "fair",
    State.COMPLETED: "plain",
    State.FAILED: "bad",
    State.KILLED: "bad",
    State.ENDED: "plain",
    State.BROKEN: "bad",
}
"""Classes of report.css."""


def describe_nothing() -> Content:
    """Before anything could be read."""
    return {"facts": [], "phases": [], "ranks": [], "point": None, "problem": ""}


def describe_live(run: LiveRun) -> Content:
    """Figures of the rank that has gone farthest; ``point`` is a place on the chart: steps so far, ns of a step."""
    lead = run.lead
    if lead is None:
        return {**describe_nothing(), "problem": shorten("; ".join(run.notes), 300)}
    step_ns = lead.step_mean_ns
    total = "" if run.steps_total is None else f"of {format_count(run.steps_total)}"
    facts = [
        ("step time", format_duration(step_ns), f"mean of the last {format_count(lead.window_count)}"),
        ("steps", format_count(lead.steps_count), total),
        ("rate", *describe_rate(run)),
        ("memory", *_describe_memory(lead)),
        ("device utilization", format_percent(lead.utilization_ratio), ""),
        ("remaining", *((UNKNOWN, "") if run.eta_s is None else (format_duration(run.eta_s * 1e9), "at this rate"))),
        *((shorten(name, 40), format_number(value), "") for name, value in list(lead.metrics.items())[:MOST_METRICS]),
    ]
    return {
        "facts": facts,
        "phases": [_describe_phase(lead, name) for name in PHASES if lead.window_ns],
        "ranks": [_describe_rank(rank) for rank in run.ranks[:MOST_RANKS]] if len(run.ranks) > 1 else [],
        "point": None if step_ns is None else (lead.steps_count, step_ns),
        "problem": shorten("; ".join(run.notes), 300),
    }


def describe_rate(run: LiveRun) -> tuple[str, str]:
    """The throughput of all ranks together per second, in the largest unit that each of them counts."""
    for noun, rates in (
        ("tokens", [rank.tokens_per_s for rank in run.ranks]),
        ("samples", [rank.samples_per_s for rank in run.ranks]),
    ):
        known = [rate for rate in rates if rate is not None]
        if known and len(known) == len(rates):
            return format_rate(sum(known), noun), f"{len(rates)} ranks together" if len(rates) > 1 else ""
    return format_rate(run.lead.steps_per_s if run.lead is not None else None, "steps"), ""


def _describe_memory(rank: LiveRank) -> tuple[str, str]:
    if rank.device_allocated_bytes:
        total = "" if rank.device_total_bytes is None else f"of {format_bytes(rank.device_total_bytes)} "
        return format_bytes(rank.device_allocated_bytes), f"{total}allocated on the device"
    return format_bytes(rank.rss_bytes), "resident, of the process"


def _describe_phase(rank: LiveRank, name: str) -> tuple[str, float, str, str]:
    """Name, share, share as text, mean per step."""
    ratio = rank.share_ratio(name) or 0.0
    return name, round(ratio, 4), format_share(ratio), format_duration(rank.phase_ns[name] / rank.window_count)


def _describe_rank(rank: LiveRank) -> tuple[str, ...]:
    name = f"pid {rank.pid}" if rank.rank is None else str(rank.rank)
    largest = max(PHASES, key=lambda phase: rank.phase_ns[phase])
    share = format_percent(rank.share_ratio(largest))
    age = UNKNOWN if rank.age_s is None else format_duration(rank.age_s * 1e9)
    return (
        name,
        shorten(rank.host, 40),
        format_count(rank.steps_count),
        format_duration(rank.step_mean_ns),
        f"{largest} {share}" if rank.window_ns else UNKNOWN,
        format_bytes(rank.memory_bytes),
        "ended" if rank.is_closed else f"{age} ago",
    )
