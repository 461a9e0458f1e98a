"""LiveRuns for tests of what is exported."""

from __future__ import annotations

from typing import Any

from hotloop.core.live import LiveDevice, LiveRank, LiveRun
from hotloop.core.phases import PHASES
from hotloop.show.export.points import Snapshot, make_snapshot

MS = 1_000_000


def make_rank(**changes: Any) -> LiveRank:
    """100 steps of 10 ms: 2 ms of them input wait, the rest backward; fields override."""
    phase_ns = {**dict.fromkeys(PHASES, 0), "input_wait": 200 * MS, "backward": 800 * MS}
    known: dict[str, Any] = {
        "rank": 0, "local_rank": 0, "host": "box", "pid": 7, "restart": 0, "world_size": 1, "steps_count": 1234,
        "window_count": 100, "window_ns": 1000 * MS, "phase_ns": phase_ns, "samples_per_s": 1600.0,
        "tokens_per_s": None, "rss_bytes": 1 << 30, "device_allocated_bytes": None, "device_reserved_bytes": None,
        "device_total_bytes": None, "utilization_ratio": None, "age_s": 0.5, "is_closed": False,
        "metrics": {"loss": 0.25},
    }  # fmt: skip
    return LiveRank(**{**known, **changes})


def make_run(*ranks: LiveRank, **changes: Any) -> LiveRun:
    known: dict[str, Any] = {
        "name": "one", "command": ("python", "train.py"), "started_wall_s": 1000.0, "state": "running",
        "exit_code": None, "age_s": 0.5, "ranks": ranks or (make_rank(),), "devices": (), "steps_total": None,
        "notes": (),
    }  # fmt: skip
    return LiveRun(**{**known, **changes})


def make_device(**changes: Any) -> LiveDevice:
    known: dict[str, Any] = {
        "index": 3, "name": "H100", "utilization_ratio": 0.5, "memory_used_bytes": 5, "memory_total_bytes": 10,
        "power_w": 300.0, "temperature_c": 55.0,
    }  # fmt: skip
    return LiveDevice(**{**known, **changes})


def snapshot_of(run: LiveRun, wall_s: float = 2000.0) -> Snapshot:
    return make_snapshot(run, wall_s)
