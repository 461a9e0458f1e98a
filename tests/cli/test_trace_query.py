"""hotloop trace --sql and --export, from files to answers and excerpts."""

from __future__ import annotations

import csv
import gzip
import io
import json
from bisect import bisect_right
from decimal import Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_traces import TRACES

from hotloop.analyze.timeline.classes import CLASS_NAMES, cover_devices, partition_windows
from hotloop.analyze.timeline.reduce import lay_groundwork, reduce_trace
from hotloop.analyze.timeline.tracks import tabulate_events
from hotloop.cli import main
from hotloop.core.timeline import RankTimeline
from hotloop.core.trace import Trace
from hotloop.trace.inputs import find_traces, read_trace_file
from hotloop.trace.query import query_traces

ROOT = Path(__file__).resolve().parents[2]
needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces lie beside the repository, in ../shared/traces"
)
HOSTILE = 'gemm"}]}\x1b[31m</script>\u2028\\'


def event(category: str, name: str, start_us: float, length_us: float, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": start_us, "dur": length_us, "args": args,
    }  # fmt: skip


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
    assert lines[-1].startswith("13 more rows: show more with --sql-rows")
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


# Export


def compare_partitions(before: Trace, after: Trace, numbers: list[int]) -> None:
    """Both traces say the same of every exported step. The window of the last one ends with its own last event in the
    excerpt, so that one is compared over the window that it has in the whole trace."""
    ground, again = lay_groundwork(before), lay_groundwork(after)
    old: RankTimeline = reduce_trace(before, ground=ground)
    new: RankTimeline = reduce_trace(after, ground=again)
    assert [step.index for step in new.steps] == numbers
    first, second = (facts.epoch_ns + (facts.unix_base_ns or 0) for facts in (before.facts, after.facts))
    shift_ns = first - second
    whole = {step.index: step for step in old.steps}
    cover = cover_devices(after, again.links, again.classes)[0]
    for step in new.steps:
        expected = whole[step.index]
        assert (step.host_ns, step.phases_ns, step.gpu_events) == (
            expected.host_ns, expected.phases_ns, expected.gpu_events,
        )  # fmt: skip
        assert expected.device_start_ns is not None
        assert expected.device_end_ns is not None
        low, high = (np.array([at + shift_ns]) for at in (expected.device_start_ns, expected.device_end_ns))
        assert partition_windows(cover, low, high) == (expected.partition,)
        if step is not new.steps[-1]:
            assert step.partition == expected.partition


def own_tracks(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Slices by the name of our track."""
    events = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text())["traceEvents"]
    (own,) = [e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "hotloop"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["pid"] == own and e["name"] == "thread_name"}
    tracks: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for e in events:
        if e["pid"] == own and e["ph"] == "X":
            tracks[names[e["tid"]]].append(e)
    return tracks


def test_an_excerpt_is_read_again_with_the_same_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", steps_trace(kernel=HOSTILE))
    target = tmp_path / "out" / "b.json"
    target.parent.mkdir()
    assert main(["trace", str(path), "-q", "--exit-zero", "--export", str(target)]) == 0
    before, after = read(path), read(target)
    compare_partitions(before, after, [4, 5, 6])
    assert HOSTILE in after.names
    assert "PyTorch Profiler (0)" not in after.names
    assert not [note for note in after.notes if note.level != "info"]
    assert [file.name for file in target.parent.iterdir()] == ["b.json"], "no temporary file stays"


def test_times_are_exact_and_tracks_fill_their_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", steps_trace())
    target = tmp_path / "b.json.gz"
    main(["trace", str(path), "-q", "--export", str(target), "--export-steps", "4:5"])
    assert target.read_bytes()[:2] == b"\x1f\x8b"
    assert '"ts": 1120.001, "dur": 400.125' in gzip.decompress(target.read_bytes()).decode()
    tracks = own_tracks(target)
    assert list(tracks) == [
        "steps on the host", "phases on the host", "steps on device 0", "device 0: where time goes", "critical path",
    ]  # fmt: skip
    assert [e["name"] for e in tracks["steps on the host"]] == ["step 4", "step 5"]
    # The nanoseconds are checked on the text, where no float has rounded them.
    for window in tracks["steps on device 0"]:
        number = int(window["name"].split()[1])
        for part in ("compute", "exposed_comm", "exposed_mem", "idle"):
            mine = [e for e in tracks["device 0: where time goes"] if e["args"]["step"] == number and e["name"] == part]
            assert sum(round(e["dur"] * 1000) for e in mine) == window["args"][f"{part}_ns"]
    for name in ("phases on the host", "critical path"):
        for number in (4, 5):
            mine = [e for e in tracks[name] if e["args"]["step"] == number]
            assert sum(round(e["dur"] * 1000) for e in mine) == 1_000_000
    for slices in tracks.values():
        ends = [(round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in slices]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_a_trace_without_steps_is_exported_whole(tmp_path: Path) -> None:
    trace = steps_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["cat"] in ("cuda_runtime", "kernel", "gpu_memcpy")]
    path = write(tmp_path / "a.json", trace)
    target = tmp_path / "b.json"
    assert main(["trace", str(path), "-q", "--exit-zero", "--export", str(target)]) == 0
    assert len(read(target)) >= len(read(path)) == 30
    assert main(["trace", str(path), "-q", "--export", str(target), "--export-steps", "1:2"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--export", "out.txt"), "must end with .json or .json.gz"),
        (("--export", "out.json", "--export-steps", "20:30"), "the trace contains steps 3 to 7"),
        (("--export", "out.json", "--export-steps", "5:4"), "is after the last"),
        (("--export", "out.json", "--export-steps", "five"), "such as 5:8"),
        (("--export-steps", "4:5"), "--export-steps needs --export FILE"),
        (("--export", "a.json"), "would overwrite the trace"),
        (("--html", "a.json"), "would overwrite the trace"),
        (("--export", "nowhere/out.json"), "does not exist"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_clear_line(
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "a.json", steps_trace())
    before = path.read_bytes()
    assert main(["trace", "a.json", "-q", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert path.read_bytes() == before
    assert not (tmp_path / "out.json").exists()


@needs_traces
@pytest.mark.parametrize("name", ["resnet50_workers_0", "mi300x_resnet_rccl", "a100_ddp_rank3of8"])
def test_real_excerpts_are_read_again_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    target = tmp_path / "b.json.gz"
    main(["trace", str(TRACES / name), "-q", "--export", str(target)])
    before, after = read(TRACES / name), read(target)
    numbers = [step.index for step in reduce_trace(after).steps]
    assert 2 <= len(numbers) <= 3
    compare_partitions(before, after, numbers)


def check_for_perfetto(target: Path) -> int:
    """What Perfetto's JSON importer needs, or it drops events without a word; the number of flows.

    Strict JSON with finite numbers; names are text, times numbers, args objects; slices of a track lie inside each
    other or apart; a flow begins once and ends once, each end inside a slice of its own track.
    """
    raw = target.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    events = json.loads(text, parse_constant=refuse, parse_float=Decimal)["traceEvents"]
    tracks: dict[tuple[Any, Any], list[tuple[Decimal, Decimal]]] = {}
    flows: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) in (int, str)
        assert isinstance(event.get("args", {}), dict)
        assert event["ph"] in ("X", "M", "s", "f", "i")
        if event["ph"] == "M":
            continue
        assert isinstance(event["ts"], (int, Decimal))
        assert type(event["tid"]) in (int, str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"]))
        elif event["ph"] in "sf":
            flows.setdefault((event["cat"], event["name"], event["id"]), []).append(event)
    for slices in tracks.values():
        open_until: list[Decimal] = []
        for start, less in sorted(slices):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            # A tick of the profiler's clock is what real traces overlap by.
            assert not open_until or start - less <= open_until[-1] + 1
            open_until.append(start - less)
    starts = {key: sorted(start for start, _ in slices) for key, slices in tracks.items()}
    reach = {
        key: list(accumulate((start - less for start, less in sorted(slices)), max)) for key, slices in tracks.items()
    }
    for ends in flows.values():
        assert [event["ph"] for event in ends] == ["s", "f"]
        assert ends[1]["bp"] == "e"
        for event in ends:
            key = (event["pid"], event["tid"])
            begun = bisect_right(starts[key], event["ts"])
            assert begun
            assert event["ts"] <= reach[key][begun - 1]
    return len(flows)


def test_an_excerpt_is_what_perfetto_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", steps_trace(kernel=HOSTILE))
    target = tmp_path / "b.json.gz"
    main(["trace", str(path), "-q", "--export", str(target), "--export-steps", "4:6"])
    assert check_for_perfetto(target) == 9


@needs_traces
def test_a_real_excerpt_is_what_perfetto_reads(tmp_path: Path) -> None:
    target = tmp_path / "b.json.gz"
    main(["trace", str(TRACES / "resnet50_workers_0"), "-q", "--export", str(target)])
    assert check_for_perfetto(target) > 1000
