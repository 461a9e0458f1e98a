"""A run of one host has the report that it had before there were hosts, byte for byte, apart from the new keys."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hotloop.core.report import Report, report_to_json
from hotloop.evidence.trace.recording import ProcessRecording, RunRecording
from hotloop.pipeline.runs import report_run

from .synthetic_hosts import Host, record_hosts

GOLDEN = Path(__file__).parents[1] / "golden" / "one_host.json"
"""Written by the version before; after a change that is meant, write it anew with HOTLOOP_UPDATE_GOLDEN=1."""


def make_run() -> RunRecording:
    processes = tuple(
        ProcessRecording(
            path=Path(f"box-{one.process['pid']}.hlr"),
            process=dict(one.process),
            rows=one.rows,
            facts=tuple(dict(fact) for fact in one.facts),
            lost_rows=0,
            closed=one.closed,
        )
        for one in record_hosts([Host("box")], 20, slow={1: 3.0}, run_id=None)
    )
    manifest = {"command": ["torchrun", "train.py"], "started_wall_s": 1.0}
    return RunRecording(manifest=manifest, outcome={"exit_code": 0}, probe=None, processes=processes, health=())


def test_one_host_is_reported_as_ever(tmp_path: Path) -> None:
    report = report_to_json(report_run(make_run(), folder=tmp_path / "run"))
    again = Report.from_json(report)
    assert (len(again.hosts), len(again.attempts)) == (1, 1)
    for key in ("tool", "run_folder", "next"):
        del report[key]
    (host,), (attempt,) = report.pop("hosts"), report.pop("attempts")
    text = json.dumps(report, indent=1) + "\n"
    if os.environ.get("HOTLOOP_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
    assert (host["name"], host["ranks"], host["offset_ns"]) == ("box", [0, 1], 0)
    assert (attempt["world_size"], attempt["steps"], attempt["repeated_steps"]) == (2, 20, None)
