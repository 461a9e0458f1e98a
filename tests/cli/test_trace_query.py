"""hotloop trace --sql, from files to answers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from real_traces import TRACES

from hotloop.cli import main
from hotloop.core.trace import Trace
from hotloop.evidence.analyze.timeline.classes import CLASS_NAMES
from hotloop.evidence.analyze.timeline.event_tables import tabulate_events
from hotloop.evidence.analyze.timeline.reduce import reduce_trace
from hotloop.evidence.trace.inputs import find_traces, read_trace_file
from hotloop.evidence.trace.query import query_traces
from tests.recordings import event

ROOT = Path(__file__).resolve().parents[2]
needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces lie beside the repository, in ../shared/traces"
)
HOSTILE = 'gemm"}]}\x1b[31m</script>\u2028\\'


def steps_trace(count: int = 5, rank: int | None = None, kernel: str = "gemm") -> dict[str, Any]:
    """Steps of 1 ms: a batch is awaited, then a kernel, an all-reduce half behind it, and a copy."""
    events = [event("Trace", "PyTorch Profiler (0)", -50.0, 9999.0, "Spans")]
    for step in range(count):
        at = 1000.001 * step
        events += [
            event("user_annotation", f"ProfilerStep#{step + 3}", at, 1000.0),
            event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100.5),
            event("cpu_op", "aten::mm", at + 100.75, 20.0, **{"Input Dims": [[4, 4], [4, 4]]}),
            event("cuda_runtime", "cudaLaunchKernel", at + 101.0, 5.0, correlation=3 * step + 1),
            event("kernel", kernel, at + 120.0, 400.125, 9, device=0, stream=9, correlation=3 * step + 1),
            event("cpu_op", "c10d::allreduce_", at + 130.0, 20.0),
            event("cuda_runtime", "cudaLaunchKernel", at + 131.0, 5.0, correlation=3 * step + 2),
            event("kernel", "mystery", at + 400.0, 300.007, 11, device=0, stream=11, correlation=3 * step + 2,
                  **{"Collective name": "allreduce", "Process Group Name": "0"}),
            event("cuda_runtime", "cudaMemcpyAsync", at + 160.0, 5.0, correlation=3 * step + 3),
            event("gpu_memcpy", "Memcpy HtoD", at + 800.0, 50.0, 9, device=0, stream=9, bytes=64,
                  correlation=3 * step + 3),
        ]  # fmt: skip
    trace: dict[str, Any] = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        trace["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return trace


def write(path: Path, trace: dict[str, Any]) -> Path:
    path.write_text(json.dumps(trace))
    return path


def ask(path: Path, sql: str, *options: str) -> int:
    return main(["trace", str(path), "--sql", sql, *options])


def ask_json(path: Path, sql: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert ask(path, sql, "--sql-format", "json") == 0
    return json.loads(capsys.readouterr().out)


def read(path: Path) -> Trace:
    (trace,) = read_trace_file(find_traces([path]).files[0])
    return trace


# SQL


def test_steps_and_kernels_say_what_the_report_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", steps_trace())
    steps = ask_json(path, "select * from steps order by step", capsys)
    line = reduce_trace(read(path))
    assert [row["step"] for row in steps] == [3, 4, 5, 6, 7]
    for row, window in zip(steps, line.steps, strict=True):
        assert window.partition is not None
        assert row["exposed_comm_ns"] == window.partition.exposed_comm_ns > 0
        assert row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_mem_ns"] + row["idle_ns"] == row["device_ns"]
        assert row["input_wait_ns"] == 100_500
        assert row["host_ns"] == row["end_ns"] - row["start_ns"] == 1_000_000
    rows = ask_json(path, "select * from kernels where step = 4 order by start_ns", capsys)
    assert [(row["name"], row["kind"], row["duration_ns"]) for row in rows] == [
        ("gemm", "compute", 400_125), ("mystery", "comm", 300_007), ("Memcpy HtoD", "mem", 50_000),
    ]  # fmt: skip
    first = rows[0]
    assert first["launch_delay_ns"] == 19_000
    assert (first["launch"], first["operator"], first["stream"]) == ("cudaLaunchKernel", "aten::mm", "9")
    assert (rows[2]["bytes"], first["bytes"]) == (64, None)


def test_events_have_their_texts_and_null_for_what_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.json", steps_trace(kernel=HOSTILE))
    rows = ask_json(path, "select name, shapes, device, step from events where category = 'cpu_op' limit 1", capsys)
    assert rows == [{"name": "aten::mm", "shapes": "[[4,4],[4,4]]", "device": None, "step": 3}]
    names = ask_json(path, "select distinct name from events where category = 'kernel' order by name", capsys)
    assert {row["name"] for row in names} == {HOSTILE, "mystery"}
    assert ask_json(path, "select count(*) as n, count(step) as inside from events", capsys) == [
        {"n": 51, "inside": 50}
    ]


def test_ranks_are_told_apart_and_ids_are_of_one_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", steps_trace(2 + rank, rank=rank))
    assert ask_json(tmp_path, "select rank, file, events_count as n from files order by rank", capsys) == [
        {"rank": 0, "file": "rank0.json", "n": 21}, {"rank": 1, "file": "rank1.json", "n": 31},
    ]  # fmt: skip
    same = (
        "select count(*) as n, count(distinct id) as ids, min(e.rank = k.rank) as same "
        "from kernels k join events e using (id)"
    )
    assert ask_json(tmp_path, same, capsys) == [{"n": 15, "ids": 15, "same": True}]


def test_a_table_is_cut_and_says_how_much_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", steps_trace(kernel=HOSTILE))
    assert ask(path, "select name, duration_ns from kernels order by start_ns", "--sql-rows", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "duration_ns"]
    assert len(lines) == 5
    assert lines[-1].startswith("more rows: show more with --sql-rows")
    assert "\x1b" not in "".join(lines)
    assert ask(path, "select 1 from events", "--sql-rows", "0") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 51
    assert ask(path, "select * from events where false") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no rows"


def test_csv_holds_every_row_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", steps_trace(40, kernel='a,"b"' + "x" * 300))
    assert ask(path, "select name, bytes from kernels order by start_ns", "--sql-format", "csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[:2] == [["name", "bytes"], ['a,"b"' + "x" * 300, ""]]
    assert len(rows) == 121


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("selec", "syntax error"),
        ("", "takes one SELECT statement, but this is nothing"),
        ("select 1; select 2", "2 statements"),
        ("drop view events", "this is DROP"),
        ("create temp table a as select 1", "this is CREATE"),
        ("set threads = 1", "this is SET"),
        ("attach '/tmp/hotloop-test.db'", "this is ATTACH"),
        ("copy events to 'x.csv'", "this is COPY"),
        ("select wrong from events", "wrong"),
        ("select * from nowhere", "tables: events, files, kernels, steps"),
        ("select * from read_text('/etc/passwd')", "disabled by configuration"),
        ("select * from glob('/*')", "disabled by configuration"),
        ("explain analyze copy (select 1) to '/tmp/hotloop-test.csv'", "disabled by configuration"),
        ("select * from '/etc/passwd'", "does not exist"),
        ("select * from statements", "does not exist"),
        ("select error('first' || chr(10) || 'second')", "first second"),
    ],
)
def test_what_is_no_plain_question_is_one_clear_line(
    sql: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.json", steps_trace(1))
    assert ask(path, sql) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("hotloop: --sql")
    assert words in line
    assert said.out == ""
    assert not Path("/tmp/hotloop-test.csv").exists()


def test_the_documented_columns_are_the_ones_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", steps_trace(1))
    text = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    for table in ("events", "files", "kernels", "steps"):
        with query_traces([path], f"select * from {table}", tabulate_events, CLASS_NAMES) as answer:
            (line,) = [line for line in text.splitlines() if line.startswith(f"| `{table}` |")]
            assert [word.strip("` ") for word in line.split("|")[3].split(",")] == list(answer.columns)
