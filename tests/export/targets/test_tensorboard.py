from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.show.export.points import flatten_points
from hotloop.show.export.targets.step_files import open_tensorboard
from tests.export.live_runs import make_rank, make_run, snapshot_of

READ = """
import json, sys, warnings
warnings.simplefilter("ignore")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [(e.wall_time, e.step, e.value) for e in events.Scalars(tag)] for tag in tags}))
"""


def read_back(folder: Path) -> dict[str, list[list[float]]]:
    """What TensorBoard's own EventAccumulator reads, in a process of its own: its imports warn."""
    done = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[float]]] = json.loads(done.stdout)
    return found


def test_tensorboard_reads_every_scalar_back(tmp_path: Path) -> None:
    sender = open_tensorboard(str(tmp_path / "logs"), {})
    snapshots = [snapshot_of(make_run(make_rank(steps_count=10 * n + 200)), wall_s=1000.0 + n) for n in range(100)]
    for snapshot in snapshots:
        sender.send(snapshot)
    sender.send(snapshots[-1])  # no step since: no event
    sender.close()
    found = read_back(tmp_path / "logs")
    flat = flatten_points(snapshots[0])
    assert set(found) == set(flat)
    for tag, value in flat.items():
        events = found[tag]
        assert [(e[0], e[1]) for e in events] == [(1000.0 + n, 10 * n + 200) for n in range(100)]
        if tag != "hotloop/steps_total":
            assert events[0][2] == pytest.approx(value, rel=1e-6)
