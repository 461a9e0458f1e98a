from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.live import STALE_AFTER_S, LiveRank, LiveRun
from hotloop.core.phases import PHASES
from hotloop.core.snapshot import STALLED_FILE, STALLS_FOLDER
from hotloop.pipeline.live import LiveReader
from hotloop.pipeline.runs import read_report
from tests.analyze.synthetic import MS, Rows, process_fact
from tests.recordings import InstantWriter


class Training:
    """A run folder that a test writes row by row."""

    def __init__(self, folder: Path, *, pid: int = 1, raw_rows: int = 16384, **process: Any) -> None:
        self.folder = folder
        (folder / "processes").mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text('{"schema": "hotloop.run/1", "command": ["python", "train.py"]}')
        self.path = folder / "processes" / f"box-{pid}-0-0.hlr"
        self.writer = InstantWriter(str(self.path), raw_rows=raw_rows, level_blocks=8)
        self.writer.write_fact(process_fact(pid=pid, **process) | {"t": 0})
        self.rows = Rows()
        self.steps_count = 0

    def step(self, **fields: int) -> None:
        self.rows.rows.clear()
        self.rows.step(index=self.steps_count, **fields)
        self.writer.write_row(self.rows.rows[-1])
        self.steps_count += 1

    def end(self) -> None:
        self.rows.rows.clear()
        self.rows.end(index=self.steps_count, other_ns=3 * MS)
        self.writer.write_row(self.rows.rows[-1])
        self.writer.close()
        (self.folder / "outcome.json").write_text('{"schema": "hotloop.outcome/1", "exit_code": 0, "signal": null}')


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "one")
    yield made
    made.writer.close()


def only_rank(run: LiveRun) -> LiveRank:
    assert len(run.ranks) == 1, run
    return run.ranks[0]


def varied(number: int) -> dict[str, int]:
    """Steps of several lengths; every tenth validates on data of its own."""
    validates = number % 10 == 9
    return {
        "forward_ns": (3 + number % 4) * MS,
        "input_wait_ns": (1 + number % 3) * MS + 7 * number,
        "nograd_ns": 20 * MS if validates else 0,
        "burst_gap_ns": MS if validates else 0,
        "after_nograd_ns": MS if validates else 0,
        "bursts": int(validates),
        "bursts_other_loader": int(validates),
        "batches": 2 if validates else 1,
    }


def phase_means(breakdown: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {name: breakdown[name]["mean_ns"] for name in PHASES}


def read_json_report(folder: Path) -> dict[str, Any]:
    from hotloop.show.report import render

    report: dict[str, Any] = json.loads(render("json", read_report(folder)))
    return report


def test_all_steps_have_the_totals_of_the_report(training: Training) -> None:
    for number in range(300):
        training.step(**varied(number))
    training.end()
    live = only_rank(LiveReader(training.folder, window_count=1000).read())
    report = read_report(training.folder)
    breakdown, excluded = report.breakdown, report.step.excluded
    assert breakdown is not None
    assert excluded is not None
    totals = {name: breakdown.phases[name].total_ns + excluded.phase_ns[name] for name in PHASES}
    assert live.phase_ns == totals
    assert live.phase_ns["validation"] > 0
    assert (live.steps_count, live.window_count) == (report.step.count, 300)


def test_the_steady_steps_have_the_report_s_means_shares_and_rates(training: Training) -> None:
    for number in range(300):
        training.step(**varied(number))
    training.end()
    report = read_json_report(training.folder)
    reader = LiveReader(training.folder, window_count=report["step"]["steady_count"])
    live = only_rank(reader.read())
    assert live.step_mean_ns == report["step"]["mean_ns"]
    assert {name: round(live.phase_ns[name] / live.window_count) for name in PHASES} == phase_means(report["breakdown"])
    for name in PHASES:
        assert live.share_ratio(name) == pytest.approx(report["breakdown"][name]["share_ratio"], abs=1e-12)
    assert live.samples_per_s == pytest.approx(report["step"]["samples_per_s"], rel=1e-9)


def test_the_age_is_that_of_the_newest_row_and_a_silent_run_is_stale(training: Training) -> None:
    now = {"wall_s": 1000.0, "s": 5.0}
    reader = LiveReader(training.folder, wall_clock=lambda: now["wall_s"], clock=lambda: now["s"])
    for _ in range(20):
        training.step()
    now["wall_s"] = 1000.0 + 20 * 0.010 + 2.0  # the synthetic steps take 10 ms, and the anchor is at 1000 s
    run = reader.read()
    assert run.state == "running"
    assert run.age_s == pytest.approx(2.0)
    training.step()
    now["s"] = 6.0
    assert reader.read().age_s == 0.0  # seen to grow: our own clock counts
    now["s"] = 6.5 + STALE_AFTER_S
    run = reader.read()
    assert (run.state, run.age_s) == ("stale", STALE_AFTER_S + 0.5)
    mark = training.folder / STALLS_FOLDER / STALLED_FILE
    mark.parent.mkdir()
    mark.touch()
    assert reader.read().state == "stalled"


def test_an_outcome_ends_the_run(training: Training) -> None:
    training.step()
    training.end()
    run = LiveReader(training.folder).read()
    assert (run.state, run.exit_code) == ("ended", 0)
    assert only_rank(run).is_closed


@pytest.mark.parametrize("content", [b"", b"nothing of ours", os.urandom(4096), b"\x89hlr\r\n\x1a\n" + b"\xff" * 9000])
def test_damage_is_a_note_and_never_an_error(training: Training, content: bytes) -> None:
    (training.path.parent / "other.hlr").write_bytes(content)
    (training.folder / "run.json").write_bytes(b'{"command": 7, "started_wall_s": "x"}')
    (training.folder / "devices.jsonl").write_bytes(content + b'\n{"devices": [{"index": "x"}, 3]}\n')
    training.step()
    run = LiveReader(training.folder).read()
    assert only_rank(run).steps_count == 1
    assert (run.command, run.started_wall_s, run.devices) == ((), None, ())
    assert any("other.hlr" in note for note in run.notes)


def test_ranks_are_in_order_and_a_restarted_rank_is_its_newest_process(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    ranks = {10: (1, 0), 11: (0, 0), 12: (1, 1)}
    made = [Training(folder, pid=pid, rank=rank, restart=restart) for pid, (rank, restart) in ranks.items()]
    for one in made:
        one.step()
        one.writer.close()
    run = LiveReader(folder).read()
    assert [(rank.rank, rank.pid) for rank in run.ranks] == [(0, 11), (1, 12)]
