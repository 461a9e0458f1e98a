from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hotloop.show.export.points import flatten_points
from hotloop.show.export.target import SendFailed
from hotloop.show.export.targets.step_files import open_json
from tests.export.live_runs import make_rank, make_run, snapshot_of


def test_a_line_holds_the_step_and_flat_names(tmp_path: Path) -> None:
    sender = open_json(str(tmp_path / "run.jsonl"), {})
    first, second = (snapshot_of(make_run(make_rank(steps_count=steps))) for steps in (10, 20))
    for snapshot in (first, first, second):
        sender.send(snapshot)
    sender.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [(line["step"], line["time_s"]) for line in lines] == [(10, 2000.0), (20, 2000.0)]
    assert lines[0]["metrics"] == flatten_points(first)


def test_a_full_disk_leaves_whole_lines() -> None:
    if not os.path.exists("/dev/full"):
        pytest.fail("/dev/full is on every Linux")
    sender = open_json("/dev/full", {})
    with pytest.raises(SendFailed, match="No space left on device"):
        sender.send(snapshot_of(make_run()))
    sender.close()
