"""A recorded run made by hand -> its report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.recording import CLOSED_BY_END, CLOSED_BY_OPTIMIZER, FIELD, STEP_FIELDS, UNKNOWN
from hotloop.core.report import Report, report_to_json
from hotloop.evidence.trace.recording import ProcessRecording, RunRecording, fill_device_times
from hotloop.pipeline.runs import report_run
from hotloop.show.report import render
from tests.recordings import event

MS = 1_000_000


def make_rows(steps: int, tail_ns: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Steps of 10 ms, 4 forward and 6 backward, and what came after the last one."""
    rows = np.zeros((steps + 1, len(STEP_FIELDS)), dtype=np.int64)
    rows[:, FIELD["index"]] = np.arange(steps + 1)
    rows[:, FIELD["rows_merged"]] = 1
    rows[:, FIELD["closed_by"]] = CLOSED_BY_OPTIMIZER
    rows[-1, FIELD["closed_by"]] = CLOSED_BY_END
    rows[:-1, FIELD["forward_ns"]] = 4 * MS
    rows[:-1, FIELD["backward_ns"]] = 6 * MS
    rows[-1, FIELD["other_ns"]] = tail_ns
    for name in ("device_forward_ns", "device_backward_ns", "device_optimizer_ns", "device_h2d_ns"):
        rows[:, FIELD[name]] = UNKNOWN
    rows[:, FIELD["end_ns"]] = np.cumsum(np.append(np.full(steps, 10 * MS), tail_ns))
    rows[:, FIELD["start_ns"]] = np.append(0, rows[:-1, FIELD["end_ns"]])
    return rows


def process_of(rows: Any, facts: tuple[dict[str, Any], ...], about: dict[str, Any], **more: Any) -> ProcessRecording:
    whole = ProcessRecording(
        path=Path("box-1-0-0.hlr"),
        process=about,
        rows=fill_device_times(rows, facts),
        facts=({"kind": "process", **about}, *facts),
        lost_rows=0,
        closed=True,
    )
    return replace(whole, **more)


def report_of(steps: int, *facts: dict[str, Any], tail_ns: int = 0, folder: Path = Path("r"), **process: Any) -> Report:
    about = {"host": "box", "pid": 1, "rank": 0, "world_size": 1, "argv": ["t.py"], "accelerator": "cuda", **process}
    one = process_of(make_rows(steps, tail_ns), facts, about)
    run = RunRecording(
        manifest={"command": ["python", "t.py"]}, outcome={"exit_code": 0}, probe=None, processes=(one,), health=()
    )
    return report_run(run, folder=folder)


def test_device_time_reaches_the_report_beside_the_host_time() -> None:
    facts = [
        {"kind": "device_times", "row": row, "forward_ns": 9 * MS, "backward_ns": 20 * MS, "h2d_ns": None}
        for row in range(2, 40, 2)
    ]
    report = report_of(40, *facts)
    assert report.device is None
    assert report_to_json(report)["device_phases"] == [
        {"phase": "forward", "device_mean_ns": 9 * MS, "host_mean_ns": 4 * MS, "steps_count": 19},
        {"phase": "backward", "device_mean_ns": 20 * MS, "host_mean_ns": 6 * MS, "steps_count": 19},
    ]
    lines = render("terminal", report, width=100, color=False).splitlines()
    assert "   forward   9.00 ms  4.00 ms           19" in lines


def test_a_process_that_only_replays_a_graph_is_not_silence() -> None:
    text = render("terminal", report_of(0, tail_ns=5_000 * MS), width=100, color=False)
    assert text == (
        "hotloop: no training was seen in this command: no process completed a backward or an optimizer step: "
        "steps that only replay a CUDA graph cannot be observed\n"
    )


def write_trace_of_late_launches(path: Path, steps: int = 6) -> None:
    """A GPU that computes 4 us out of every 50, because the host launches no faster."""
    events: list[dict[str, Any]] = []
    for step in range(steps):
        at = 1_000.0 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", at, 1_000.0))
        for i in range(20):
            begin, number = at + 50 * i, 100 * step + i + 1
            events.append(event("cpu_op", "aten::add", begin, 48.0))
            events.append(event("cuda_runtime", "cudaLaunchKernel", begin + 40, 6.0, correlation=number))
            where = {"tid": 7, "pid": 0}
            kernel = event("kernel", "add", begin + 47, 4.0, correlation=number, device=0, stream=7)
            events.append(kernel | where)
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A100"}], "distributedInfo": {"rank": 0}}
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**header, "traceEvents": events}))


def test_what_only_a_kept_trace_shows_reaches_the_run_s_report(tmp_path: Path) -> None:
    write_trace_of_late_launches(tmp_path / "traces" / "rank0.json")
    without, report = report_of(40), report_of(40, folder=tmp_path)
    assert "launch-bound" in {one.rule for one in without.skipped}
    assert "launch-bound" in {one.rule for one in report.findings}
    assert "launch-bound" not in {one.rule for one in report.skipped}
    assert report.device is not None
    assert report.ranks[0].device == report.device
    assert report.breakdown == without.breakdown
    assert any("from 6 steps of the run" in one.message for one in report.health)


def test_a_kept_trace_that_cannot_be_read_costs_a_line(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "rank0.json").write_text("{")
    report = report_of(40, folder=tmp_path)
    assert report.device is None
    assert any("the recorded traces could not be analyzed" in one.message for one in report.health)


def test_a_process_that_the_kernel_killed_for_memory_is_told_with_what_it_held() -> None:
    held = {"kind": "held", "device": "cpu", "parameter_bytes": 1 << 30, "gradient_bytes": 1 << 30}
    memory = {"kind": "memory", "row": 30, "t": 1, "rss_bytes": 7 << 30, "peak_rss_bytes": 7 << 30, "device": None}
    facts = ({**held, "optimizer_state_bytes": 2 << 30}, memory)
    about = {"host": "box", "pid": 1, "rank": 0, "world_size": 1, "argv": ["t.py"], "memory_total_bytes": 8 << 30}
    one = process_of(make_rows(40), facts, about, closed=False)
    killed = RunRecording(
        manifest={"command": ["python", "t.py"]},
        outcome={"signal": 9, "oom_kills": 1},
        probe=None,
        processes=(one,),
        health=(),
    )
    finding = report_run(killed, folder=Path("r")).findings[0]
    assert (finding.rule, finding.severity.value) == ("out-of-memory", "high")
    assert "the kernel killed it, with 7.0 GiB of 8.0 GiB in use" in finding.title
    assert finding.evidence["activations_and_rest_bytes"] == 3 << 30
    elsewhere = report_run(replace(killed, outcome={"signal": 9, "oom_kills": 0}), folder=Path("r"))
    assert "out-of-memory" not in {one.rule for one in elsewhere.findings}
